"""The use of containers that run without the library: as the driver reports their processes."""

from __future__ import annotations

from collections.abc import Iterable

from hamicommon.events import ContainerSample

from hami_node_agent.enforcement.checker import Checked
from hami_node_agent.enforcement.facts import LimitKey
from hami_node_agent.enforcement.look import MIB
from hami_node_agent.grants.records import Record


def plain_samples(records: Iterable[Record], checked: Checked) -> tuple[ContainerSample, ...]:
    """Memory by card of each such container in the last look; their cores are not known."""
    return tuple(
        _sample(record, position, standing.judgement.held_mib)
        for record in records
        if record.plain and record.allocation_id
        for position, share in enumerate(record.shares)
        if (
            standing := checked.standings.get(
                LimitKey(record.pod_uid, record.container, share.uuid)
            )
        )
        is not None
        and standing.looked_s == checked.looked_s
    )


def _sample(record: Record, position: int, held_mib: int | None) -> ContainerSample:
    share = record.shares[position]
    return ContainerSample(
        pod_uid=record.pod_uid,
        namespace=record.namespace,
        pod=record.pod_name,
        container=record.container,
        vdevice_index=position,
        uuid=share.uuid,
        memory_used_bytes=None if held_mib is None else held_mib * MIB,
        memory_limit_bytes=share.memory_mib * MIB,
        core_limit_percent=share.core_percent,
    )
