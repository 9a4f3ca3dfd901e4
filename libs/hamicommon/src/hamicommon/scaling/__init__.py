"""Nodes to add so that the waiting pods can run; without I/O.

`node_types` reads the kinds of nodes that may join, `planner` places pods on those that exist and
on new ones by the engine: `hamictl scale plan`.
"""
