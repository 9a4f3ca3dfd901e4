"""Node policy `fragmentation`: place pods where they leave the fewest idle cards unusable.

Nothing outside imports this package but one line of `placement/node_policies.py`. `policy` answers
the engine; `states` are nodes as they are or might be, and `costs` values them. `tables` turns
the usual pods (`placement/cluster/arrivals.py`), whose needs `demand` has, into look-ups;
`remainders` prices what is left of a card by a linear program, `costs` whole nodes and scarce
models. docs/packing.md describes it for those who use it.
"""
