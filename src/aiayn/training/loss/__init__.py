"""Losses: `loss(features, weight, labels)`, with the other arguments from conf, sums a batch's loss over its tokens."""
