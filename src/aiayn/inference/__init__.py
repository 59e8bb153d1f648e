"""From a trained model to translations: the checkpoint file, and the search of section 6.1."""
