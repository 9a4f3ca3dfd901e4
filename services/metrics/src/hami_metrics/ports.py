"""Interfaces of the metrics service to its databases."""

from __future__ import annotations

from collections.abc import Sequence, Set
from datetime import date, datetime
from typing import Protocol

from hami_metrics.domain.cluster import ClusterSnapshot
from hami_metrics.domain.samples import NodePod, Sample


class Ledger(Protocol):
    """Reader of the ledger."""

    async def snapshot(self) -> ClusterSnapshot:
        """Return the state at one moment. Raises: Unavailable."""


class UsageStore(Protocol):
    """Store of usage; methods may raise Unavailable or Conflict and may be repeated."""

    async def write(self, samples: Sequence[Sample]) -> int:
        """Store the samples that are not stored yet; return their number."""

    async def granted_pods(self, pods: Set[NodePod], since: datetime) -> set[NodePod]:
        """Return the pods that had a grant on their node since then."""

    async def sum_up(self, node: str, start: datetime) -> None:
        """Sum up a node's samples of the `FINE_S` seconds from `start`, and their hour.

        Replace earlier sums. A granted pod's samples count while it held the grant.
        """

    async def unsummed_buckets(self, since: datetime) -> list[tuple[str, datetime]]:
        """Return (node, bucket start) of buckets whose sums lack samples."""

    async def keep_samples(self, today: date, keep_days: int) -> list[date]:
        """Create partitions of coming days (UTC) and drop those of old days.

        Returns the days dropped.
        """

    async def sum_up_namespaces(self, now: datetime) -> int:
        """Sum up granted and used amounts of namespaces per hour and day; return the hours."""

    async def sum_up_capacity(self, now: datetime) -> int:
        """Sum up card time by state and by holder, per hour and day.

        Returns the hours.
        """

    async def forget_capacity(self, bucket_s: int, before: datetime) -> int:
        """Delete sums of card time before that moment; return their number."""

    async def forget_namespaces(self, bucket_s: int, before: datetime) -> int:
        """Delete sums of namespaces before that moment; return their number."""

    async def forget_rollups(self, bucket_s: int, before: datetime) -> int:
        """Delete sums of usage before that moment; return their number."""
