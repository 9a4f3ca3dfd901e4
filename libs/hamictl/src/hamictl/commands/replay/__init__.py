"""`hamictl replay`: the command, and how its options are read."""
