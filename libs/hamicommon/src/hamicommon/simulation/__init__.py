"""Simulate decisions offline: Node and Pod objects in, the verdict on one pod out. Pure.

`cluster` reads the objects, `verdict` asks the engine about one pod, `planner` about several with
admission before it, `fitting` how many more fit: the scheduler's `/v1/simulate`, and `hamictl
simulate`, `lint` and `capacity`. `cases` has the batch form of `hamictl simulate --jsonl`.
"""
