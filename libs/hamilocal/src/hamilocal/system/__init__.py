"""Processes, files, ports and credentials of the local system."""
