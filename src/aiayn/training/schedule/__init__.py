"""Schedules: `schedule(optimizer)`, with the other arguments from conf, is a learning-rate scheduler of torch."""
