"""What each position computes by itself (section 3.3)."""
