"""A store of usage in memory, and reports for it."""

import re
from collections.abc import Sequence, Set
from datetime import UTC, date, datetime, timedelta

from hami_metrics.domain.samples import COARSE_S, FINE_S, NodePod, Sample, bucket_of
from hami_metrics.instruments import MetricsInstruments
from hami_metrics.service import UsageHistory
from hamicommon.bus.client import Message
from hamicommon.errors import Unavailable
from hamicommon.events import ContainerSample, DeviceSample, Usage

START = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)
GRACE_S = 20.0


class FakeStore:
    """`ports.UsageStore` in memory."""

    def __init__(self) -> None:
        self.rows: dict[tuple[object, ...], Sample] = {}
        self.sums: dict[tuple[object, ...], int] = {}
        """(length, start, series) -> samples."""
        self.days: set[date] = set()
        self.forgotten: dict[int, datetime] = {}
        self.capacity_forgotten: dict[int, datetime] = {}
        self.away = False
        self.grants: set[NodePod] = {("n1", "u1", "ns", "p")}

    def _here(self) -> None:
        if self.away:
            raise Unavailable("Postgres: away")

    async def write(self, samples: Sequence[Sample]) -> int:
        self._here()
        before = len(self.rows)
        for sample in samples:
            self.rows.setdefault((sample.sampled_at, sample.series), sample)
        return len(self.rows) - before

    async def granted_pods(self, pods: Set[NodePod], since: datetime) -> set[NodePod]:
        self._here()
        return self.grants & pods

    async def sum_up(self, node: str, start: datetime) -> None:
        self._here()
        for bucket_s, begin in ((FINE_S, start), (COARSE_S, bucket_of(start, COARSE_S))):
            end = begin + timedelta(seconds=bucket_s)
            held = [
                row.series
                for row in self.rows.values()
                if row.series.node == node and begin <= row.sampled_at < end
            ]
            self.sums |= {(bucket_s, begin, series): held.count(series) for series in held}

    async def unsummed_buckets(self, since: datetime) -> list[tuple[str, datetime]]:
        self._here()
        return []

    async def keep_samples(self, today: date, keep_days: int) -> list[date]:
        self._here()
        gone = sorted(day for day in self.days if day < today - timedelta(days=keep_days))
        self.days = (self.days | {today, today + timedelta(days=1)}) - set(gone)
        return gone

    async def sum_up_namespaces(self, now: datetime) -> int:
        self._here()
        return 0

    async def forget_namespaces(self, bucket_s: int, before: datetime) -> int:
        self._here()
        self.forgotten[bucket_s] = before
        return 0

    async def sum_up_capacity(self, now: datetime) -> int:
        self._here()
        return 0

    async def forget_capacity(self, bucket_s: int, before: datetime) -> int:
        self._here()
        self.capacity_forgotten[bucket_s] = before
        return 0

    async def forget_rollups(self, bucket_s: int, before: datetime) -> int:
        self._here()
        gone = [key for key in self.sums if key[0] == bucket_s and key[1] < before]
        for key in gone:
            del self.sums[key]
        return len(gone)


def usage(sequence: int, at: datetime, *, core: float | None = 50.0) -> bytes:
    return (
        Usage(
            node="n1",
            agent_id="a1",
            sequence=sequence,
            sampled_at=at,
            devices=(DeviceSample(uuid="GPU-1", index=0, type="A100", gpu_percent=core),),
            containers=(
                ContainerSample(
                    pod_uid="u1",
                    namespace="ns",
                    pod="p",
                    container="c",
                    vdevice_index=0,
                    uuid="GPU-1",
                    memory_used_bytes=100,
                    memory_limit_bytes=0,
                    core_percent=core,
                ),
            ),
        )
        .model_dump_json()
        .encode()
    )


def message(
    body: bytes, *, subject: str = "hami.usage.v1.n1", received_at: datetime | None = None
) -> Message:
    """The report as the bus delivers it, received when it was sampled."""
    if received_at is None:
        found = re.search(rb'"sampled_at":"([^"]+)"', body)
        received_at = START if found is None else datetime.fromisoformat(found[1].decode())
    return Message(
        subject=subject, data=body, stream_sequence=1, deliveries=1, received_at=received_at
    )


async def ingest(history: UsageHistory, body: bytes) -> None:
    """Ingest a single report. Raises: the error that answers the bus."""
    (answer,) = await history.ingest([message(body)])
    if answer is not None:
        raise answer


def value(instruments: MetricsInstruments, name: str, **labels: str) -> float:
    return instruments.registry.get_sample_value(name, labels) or 0.0
