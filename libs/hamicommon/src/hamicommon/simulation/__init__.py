"""The engine offline: Node and Pod objects in, a verdict for one pod out. Pure.

`holdings` reads what placed pods hold, `cluster` puts it on the nodes' cards, `verdict` asks the
engine, `cases` speaks the batch form of `hamictl simulate --jsonl`. `POST /v1/simulate` of the
scheduler asks the same of its live view.
"""
