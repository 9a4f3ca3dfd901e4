"""The process that owns every other process of the local system.

`plan` describes a child, `lifecycle` decides (pure) what to start, restart and stop, `children`
runs one process, `supervisor` ties them together, `state_file` is what the next command reads.
"""
