"""Looking into a model: attention weights, alignments, heads, and their pictures."""
