"""ResourceClaims that the ledger allocates itself ("lead"; ADR 12, docs/dra.md).

Devices carry a taint that keeps kube-scheduler's own allocator away. For a pod that waits with
claims of ours, the engine decides as for limits (`placing.py`), the grant is committed, and then it
is written into the claims (`lead.py`); kube-scheduler honours it, and binds the pod. `waiting.py`
has the pods and claims of the watches, `nodes.py` which nodes a pod may go to.
"""
