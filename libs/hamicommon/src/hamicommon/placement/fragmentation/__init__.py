"""What a placement strands: idle cards that no usual pod could use afterwards.

`tables` turns the usual pods (`cluster/arrivals.py`) into look-ups, `prices` values remainders of
cards by the ways to cut them (`cuts`), `stranded` the state of nodes, `whole_nodes` what pods with
several cards will miss. What `node_costs.py` asks of them is described in docs/packing.md.
"""
