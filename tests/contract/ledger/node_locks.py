"""The real node lock, opened over Redis."""

from hamicommon.domain.ids import AllocationId, NodeName, PodUid
from hamicommon.ledger.model import LockHolder

NODE = NodeName("node-a")
KEY = f"hami:nodelock:{NODE}"
LOCK_S = 30.0


def holder(number: int, *, token: int | None = None) -> LockHolder:
    return LockHolder(
        pod_uid=PodUid(f"pod-{number}"),
        allocation_id=AllocationId(f"00000000-0000-0000-0000-{number:012d}"),
        token=number if token is None else token,
    )
