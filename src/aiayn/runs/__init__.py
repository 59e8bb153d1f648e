"""What a run leaves in its folder, and a sweep in its own."""
