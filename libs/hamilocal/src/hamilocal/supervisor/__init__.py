"""Supervisor, the parent of all processes of the local system.

`plan` describes a child, `children` runs one process, `supervisor` starts, restarts and stops them,
`state_file` is what the next command reads.
"""
