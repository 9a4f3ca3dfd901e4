"""Choose the samples to publish: changed ones, and all once a minute. Pure.

The samples of an idle card, or of a notebook that only holds memory, stay the same for hours. An
unchanged sample is not published. When it changes, or when the minute is over, the report names the
rounds in which it was unchanged, so the stored data is the same as if all were published.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from hamicommon.events import (
    USAGE_HEARTBEAT_S,
    USAGE_MAX_ROUNDS,
    ContainerSample,
    DeviceSample,
    Unchanged,
)

_Sample = DeviceSample | ContainerSample
_Series = tuple[str, str, str]
"""Key of a sample: card, pod uid and container; the last two are empty for the card itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Samples of one moment."""

    sampled_at: datetime
    devices: tuple[DeviceSample, ...]
    containers: tuple[ContainerSample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedState:
    """Samples that readers of the bus have, and those that are still to be sent."""

    samples: Mapping[_Series, _Sample] = field(default_factory=dict)
    """Samples as last published."""
    pending_rounds: Mapping[_Series, int] = field(default_factory=dict)
    """Number of rounds since then in which a sample was unchanged."""
    rounds: tuple[datetime, ...] = ()
    """Rounds of this heartbeat that were published or are pending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Report to publish, and the state after it."""

    devices: tuple[DeviceSample, ...]
    containers: tuple[ContainerSample, ...]
    unchanged: tuple[Unchanged, ...]
    earlier_rounds: tuple[datetime, ...]
    published: PublishedState

    def __bool__(self) -> bool:
        """Return whether there is anything to publish."""
        return bool(self.devices or self.containers or self.unchanged)


def heartbeat_of(node: str, at: datetime) -> int:
    """Return the number of the heartbeat at a moment; each node has its own offset.

    Otherwise all agents of a cluster would publish everything in the same second of each minute.
    """
    phase_s = zlib.crc32(node.encode()) % USAGE_HEARTBEAT_S
    return (int(at.timestamp()) + phase_s) // USAGE_HEARTBEAT_S


def changes(node: str, published: PublishedState, now: Round) -> Changes:
    """Return the samples of a round that differ from those published before."""
    whole = _is_over(node, published, now)
    samples = _by_series(now)
    new = {
        series: sample
        for series, sample in samples.items()
        if whole or not _same(published.samples.get(series), sample)
    }
    ended = [series for series in published.samples if series in new or series not in samples]
    unchanged = _unchanged_series(published, ended)
    longest = max((one.rounds for one in unchanged), default=0)
    return Changes(
        devices=_devices(new.values()),
        containers=_containers(new.values()),
        unchanged=unchanged,
        earlier_rounds=published.rounds[len(published.rounds) - longest :],
        published=PublishedState(
            samples=samples,
            pending_rounds={
                series: 0 if series in new else published.pending_rounds[series] + 1
                for series in samples
            },
            rounds=(now.sampled_at,) if whole else (*published.rounds, now.sampled_at),
        ),
    )


def _same(before: _Sample | None, sample: _Sample) -> bool:
    # Usually the same object, whose fields need no comparison.
    return before is sample or before == sample


def _is_over(node: str, published: PublishedState, now: Round) -> bool:
    if not published.rounds or len(published.rounds) == USAGE_MAX_ROUNDS:
        return True
    return heartbeat_of(node, published.rounds[-1]) != heartbeat_of(node, now.sampled_at)


def _unchanged_series(published: PublishedState, ended: Iterable[_Series]) -> tuple[Unchanged, ...]:
    by_pending_rounds: dict[int, list[_Sample]] = defaultdict(list)
    for series in ended:
        if pending_rounds := published.pending_rounds[series]:
            by_pending_rounds[pending_rounds].append(published.samples[series])
    return tuple(
        Unchanged(rounds=pending_rounds, devices=_devices(samples), containers=_containers(samples))
        for pending_rounds, samples in sorted(by_pending_rounds.items())
    )


def _by_series(now: Round) -> dict[_Series, _Sample]:
    samples: dict[_Series, _Sample] = {(card.uuid, "", ""): card for card in now.devices}
    samples |= {(one.uuid, one.pod_uid, one.container): one for one in now.containers}
    return samples


def _devices(samples: Iterable[_Sample]) -> tuple[DeviceSample, ...]:
    return tuple(sample for sample in samples if isinstance(sample, DeviceSample))


def _containers(samples: Iterable[_Sample]) -> tuple[ContainerSample, ...]:
    return tuple(sample for sample in samples if isinstance(sample, ContainerSample))
