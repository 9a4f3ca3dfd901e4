"""`hamictl replay`: the command and the parsing of its options."""
