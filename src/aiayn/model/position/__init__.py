"""Where a token stands (section 3.5)."""
