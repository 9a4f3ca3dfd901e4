"""The node's file system, processes and cgroups."""
