"""Nodes that would have to join for the waiting pods to run. Pure.

`node_types` reads the kinds of nodes that may join, `planner` places pods on those that exist and
on new ones by the engine: `hamictl scale plan`.
"""
