"""Nodes that are asked for, for pods that fit on none (`HAMI_SCHEDULER_SCALE`, docs/scaling.md).

`planning` counts them in another process, `placeholders` are pods that an autoscaler makes a node
for, and `loop` keeps the wishes, each a row (`scale_wishes`).
"""
