"""Build the command line: commands are imported when called, with options common to all."""
