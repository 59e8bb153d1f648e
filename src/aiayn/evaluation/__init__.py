"""Strings in, numbers out."""
