"""Node policy `fragmentation`: place pods where they leave the fewest idle cards unusable.

Only one line of `placement/node_policies.py` outside this package imports it. `policy` answers the
engine; `states` are nodes as they are or might be, and `costs` values them. `tables` turns the
usual pods (`placement/cluster/arrivals.py`), whose needs are in `demand`, into look-ups;
`remainders` prices the remainder of a card by a linear program, `costs` whole nodes and scarce
models. docs/packing.md describes it for users.
"""
