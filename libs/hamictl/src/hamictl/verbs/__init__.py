"""The list of verbs as a command line: imported when called, with the options of all of them."""
