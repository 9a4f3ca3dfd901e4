"""Usage of 1000 nodes with 8 cards and two slices a card, as their agents publish it.

A round is one report of each node: 24,000 samples. Everything follows from the number of the round,
so two runs publish the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta

from hami_metrics.domain.samples import samples_of
from hamicommon import events
from hamicommon.bus.client import Outgoing
from hamicommon.events import ContainerSample, DeviceSample, Usage

NODES = 1000
CARDS = 8
SLICES = 2
ROUND_SAMPLES = NODES * CARDS * (1 + SLICES)
ROUND = timedelta(seconds=1.2)
"""20,000 samples a second."""
GIB = 1 << 30
_MARK = "2001-01-01T00:00:00Z"


def usage(node: int, sequence: int, at: datetime) -> Usage:
    """One node's report of everything."""
    name = f"node-{node:04}"
    uuids = [f"GPU-{node:08x}-0000-4000-8000-{card:012x}" for card in range(CARDS)]
    return Usage(
        node=name,
        agent_id=f"agent-{node}",
        sequence=sequence,
        sampled_at=at,
        devices=tuple(
            DeviceSample(
                uuid=uuid,
                index=card,
                type="NVIDIA A100-SXM4-80GB",
                memory_used_bytes=(card + 1) * GIB,
                memory_total_bytes=80 * GIB,
                gpu_percent=float((node + card) % 100),
            )
            for card, uuid in enumerate(uuids)
        ),
        containers=tuple(
            ContainerSample(
                pod_uid=f"{node:08x}-1111-4222-8333-{card * SLICES + part:012x}",
                namespace=f"team-{node % 20:02}",
                pod=f"train-{node:04}-{card}-{part}",
                container="main",
                vdevice_index=0,
                uuid=uuid,
                memory_used_bytes=(part + 1) * GIB,
                memory_limit_bytes=8 * GIB,
                core_percent=float((node + part) % 30),
                core_limit_percent=30,
                processes=1,
            )
            for card, uuid in enumerate(uuids)
            for part in range(SLICES)
        ),
    )


def rounds(count: int, since: datetime) -> Iterator[list[Outgoing]]:
    """The messages of each round; made from texts, so that the sender needs little time."""
    marked = datetime.fromisoformat(_MARK)
    texts = [
        json.dumps(usage(node, 0, marked).model_dump(mode="json"), separators=(",", ":"))
        .replace(_MARK, "%(at)s")
        .replace('"sequence":0', '"sequence":%(round)s')
        for node in range(NODES)
    ]
    for number in range(count):
        values = {"at": (since + number * ROUND).isoformat(), "round": number}
        yield [
            Outgoing(
                subject=events.usage_subject(f"node-{node:04}"),
                data=(text % values).encode(),
                message_id=f"{node}:{values['at']}",
            )
            for node, text in enumerate(texts)
        ]


def rows(count: int, since: datetime) -> Iterator[list[tuple[object, ...]]]:
    """The same rounds as rows of `usage_samples`."""
    template = [
        sample
        for node in range(NODES)
        for sample in samples_of(usage(node, 0, since), received_at=since)
    ]
    for number in range(count):
        at = since + number * ROUND
        yield [
            (
                at,
                *(each.series.node, each.series.device_uuid, each.series.pod_uid),
                *(each.series.namespace, each.series.pod_name, each.series.container),
                *(each.memory_used_bytes, each.memory_limit_bytes),
                *(each.core_percent, each.core_limit_percent),
            )
            for each in template
        ]
