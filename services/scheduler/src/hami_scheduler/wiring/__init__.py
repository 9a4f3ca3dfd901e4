"""Makes the use cases and their background loops out of an opened outside world.

The story in order: `assembly.py` builds the whole service from `core.py` (what the use cases
share), `watches.py` (the informers), `loops.py` (what runs in the background) and `measuring.py`
(the gauges).
"""
