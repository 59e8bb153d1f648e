"""How each query gathers what it needs (section 3.2)."""
