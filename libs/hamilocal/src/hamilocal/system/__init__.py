"""The local system: which processes it consists of, their files, ports and credentials."""
