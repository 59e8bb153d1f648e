"""Commands for finished models: use them, and look into them."""
