"""Text to batches (section 5.1): parallel_text -> cleaning -> tokenizer -> corpus -> batching -> datamodule."""
