"""From a trained model to translations: the search of section 6.1, sampling, ensembles, exports."""
