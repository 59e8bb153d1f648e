"""A model in a file: written, read, averaged, and Lightning's door to it."""
