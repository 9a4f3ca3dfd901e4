"""Dynamic Resource Allocation (resource.k8s.io/v1): cards as devices, allocated claims as grants.

Pure: what a card is called and what of it can be asked for (`devices.py`), and which container of a
pod was allocated what (`claims.py`). The node-agent publishes the former and both it and the
scheduler read the latter.
"""
