"""A translation service over HTTP, and its page."""
