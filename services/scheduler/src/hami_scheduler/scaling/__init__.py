"""Requests for nodes for pods that fit on no node (`HAMI_SCHEDULER_SCALE`, docs/scaling.md).

`planning` counts them in another process, `placeholders` are pods that an autoscaler makes a node
for, and `loop` keeps the wishes, each a row (`scale_wishes`).
"""
