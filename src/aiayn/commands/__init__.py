"""What `task=` names, a file for each of conf/task."""
