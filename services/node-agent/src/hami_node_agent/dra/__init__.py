"""Offer the node's cards by Dynamic Resource Allocation, in addition to the device plugin.

kube-scheduler allocates from the ResourceSlices that `publisher.py` keeps; the kubelet finds the
driver by its sockets (`server.py`) and has a pod's claims prepared before it makes the pod
(`preparation.py`). Their slices come from the same ledger as those of
`nvidia.com/gpu`, so the two together never exceed a card (docs/dra.md).
"""
