"""Access to the node's file system, processes and cgroups."""
