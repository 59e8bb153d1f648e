"""Where sentences come from, a file for each kind of corpus."""
