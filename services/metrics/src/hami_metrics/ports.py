"""The interfaces of the metrics service to the outside, in its own terms."""

from __future__ import annotations

from collections.abc import Sequence, Set
from datetime import date, datetime
from typing import Protocol

from hami_metrics.domain.cluster import ClusterSnapshot
from hami_metrics.domain.samples import NodePod, Sample


class Ledger(Protocol):
    """The ledger, read only."""

    async def snapshot(self) -> ClusterSnapshot:
        """One consistent reading. Raises: Unavailable."""


class UsageStore(Protocol):
    """Store of usage. Every method may raise Unavailable or Conflict and may be repeated."""

    async def write(self, samples: Sequence[Sample]) -> int:
        """Store the samples that are not stored yet; return their number."""

    async def granted(self, pods: Set[NodePod], since: datetime) -> set[NodePod]:
        """Pods of that name with a grant on that node at some time since then."""

    async def sum_up(self, node: str, start: datetime) -> None:
        """Sum up a node's samples of the `FINE_S` seconds from `start` on, and the hour.

        Replace earlier sums. A granted pod's samples count while it held the grant.
        """

    async def unsummed(self, since: datetime) -> list[tuple[str, datetime]]:
        """(node, bucket start) where samples since then and their sums differ in number."""

    async def keep_samples(self, today: date, keep_days: int) -> list[date]:
        """Make room for the samples of the days to come (UTC) and drop those of earlier days.

        Returns the days dropped.
        """

    async def sum_up_namespaces(self, now: datetime) -> int:
        """Sum up what namespaces were granted and used, per hour and day; return the hours."""

    async def sum_up_capacity(self, now: datetime) -> int:
        """Sum up what became of the cards' time and whose it was, per hour and day.

        Returns the hours.
        """

    async def forget_capacity(self, bucket_s: int, before: datetime) -> int:
        """Delete capacity sums of buckets before that moment; return their number."""

    async def forget_namespaces(self, bucket_s: int, before: datetime) -> int:
        """Delete namespaces' sums of buckets before that moment; return their number."""

    async def forget_rollups(self, bucket_s: int, before: datetime) -> int:
        """Delete rollups of earlier buckets; return their number."""
