"""The names of MIG instances that nodes made, in the ledger and on the pods (protocol 2.6).

In: the instances in a node's report. The row keeps the annotation as it must be, the pod gets it at
once; where it does not, the mirror writes it at the next comparison (`pod_annotations.py`).
hami-metrics exposes realised instances from the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hamicommon.domain.allocations import Allocation
from hamicommon.domain.ids import GpuUuid, PodUid
from hamicommon.errors import Conflict, NotFound, Unavailable
from hamicommon.events import MadeInstance
from hamicommon.k8s.annotations import MIG_ALLOCATIONS
from hamicommon.k8s.mig import MigNames, decode_reservations, encode_reservations, with_names

from hami_scheduler.ports.cluster import PodApi
from hami_scheduler.ports.ledger import AllocationStore

logger = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class MadeInstances:
    """Writes them down."""

    store: AllocationStore
    pods: PodApi
    doubt_mirror: Callable[[PodUid], None]

    async def note(self, allocation: Allocation, made: Iterable[MadeInstance]) -> None:
        """Annotate idempotently; a deleted pod needs none. Raises: Unavailable (ledger).

        Raises: InvalidRequest when the row's own annotation can't be read.
        """
        known = allocation.annotations.get(MIG_ALLOCATIONS, "")
        text = named(allocation, known, made)
        if allocation.token is None or text == known:
            return
        written = {MIG_ALLOCATIONS: text}
        if not await self.store.annotate(allocation.id, allocation.token, written):
            return
        try:
            await self.pods.annotate(
                allocation.namespace,
                allocation.pod_name,
                uid=allocation.pod_uid,
                annotations=written,
                labels={},
            )
        except NotFound:
            return
        except (Conflict, Unavailable) as exc:
            logger.warning(
                "Failed to annotate the names of MIG instances",
                extra={"pod_uid": allocation.pod_uid, "error": str(exc)},
            )
            self.doubt_mirror(allocation.pod_uid)


def named(allocation: Allocation, text: str, made: Iterable[MadeInstance]) -> str:
    """The annotation with the names of these instances.

    Raises: InvalidRequest when `text` can't be read.
    """
    index_of = {container.name: container.index for container in allocation.containers}
    names = {
        (index_of[one.container], one.device_index): MigNames(
            card=GpuUuid(one.uuid),
            mig_uuid=one.mig_uuid,
            gpu_instance_id=one.gpu_instance_id,
            compute_instance_id=one.compute_instance_id,
        )
        for one in made
        if one.container in index_of
    }
    return encode_reservations(with_names(decode_reservations(text), names)) if text else ""
