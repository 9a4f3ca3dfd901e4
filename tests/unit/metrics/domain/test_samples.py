"""Reports to samples: what agents leave out is made good, round for round."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hami_metrics.domain.samples import Sample, Series, samples_of
from hami_node_agent.usage.changes import Round, heartbeat_of
from hami_node_agent.usage.sampler import UsagePublisher
from hamicommon.errors import InvalidRequest, Unavailable
from hamicommon.events import ContainerSample, DeviceSample, Unchanged, Usage
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

START = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)


class Bus:
    """Bus that records published reports, and may fail before or after storing one."""

    connected = True

    def __init__(self) -> None:
        self.stored: list[Usage] = []
        self.trouble = ""
        self.tries = 0

    async def publish(self, subject: str, payload: BaseModel, *, message_id: str) -> None:
        self.tries += 1
        if self.trouble != "lost":
            self.stored.append(Usage.model_validate_json(payload.model_dump_json()))
        if self.trouble:
            raise Unavailable("NATS: no answer")


def a_round(at: datetime, memory: int | None, pods: Mapping[str, int | None]) -> Round:
    return Round(
        sampled_at=at,
        devices=(DeviceSample(uuid="GPU-1", index=0, type="A100", memory_used_bytes=memory),),
        containers=tuple(
            ContainerSample(
                pod_uid=pod,
                namespace="ns",
                pod=pod,
                container="c",
                vdevice_index=0,
                uuid="GPU-1",
                memory_used_bytes=used,
                core_percent=used,
            )
            for pod, used in pods.items()
        ),
    )


def whole(now: Round) -> Usage:
    """A report of the whole round, changed or not."""
    return Usage(
        node="n",
        agent_id="a",
        sequence=1,
        sampled_at=now.sampled_at,
        devices=now.devices,
        containers=now.containers,
    )


def keep_first(reports: Iterable[Usage]) -> dict[tuple[datetime, Series], Sample]:
    """Return the rows that the store keeps: the first of two of one series at one moment."""
    rows: dict[tuple[datetime, Series], Sample] = {}
    for report in reports:
        for sample in samples_of(report, received_at=report.sampled_at):
            rows.setdefault((sample.sampled_at, sample.series), sample)
    return rows


def publish_rounds(history: History) -> tuple[Bus, list[Round], list[Round]]:
    """The bus afterwards, all rounds, and those of which nothing went wrong."""
    bus, at, every, well = Bus(), START, [], []
    publisher = UsagePublisher(bus, node="n", agent_id="a")

    async def go() -> None:
        nonlocal at
        for seconds, memory, pods, trouble in history:
            at += timedelta(seconds=seconds)
            now = a_round(at, memory, pods)
            bus.trouble, before = trouble, bus.tries
            await publisher.publish(now)
            every.append(now)
            if not trouble or bus.tries == before:
                well.append(now)
        bus.trouble = ""
        # As `flush` does, by the clock of the history.
        await publisher.publish(Round(sampled_at=at, devices=(), containers=()))

    asyncio.run(go())
    return bus, every, well


History = list[tuple[int, int | None, dict[str, int | None], str]]
# Few values, so that most rounds are like the one before.
memory = st.sampled_from([1, 1, 1, 1, 2, None])
pods = st.dictionaries(st.sampled_from("ab"), memory, max_size=2)


def histories(*troubles: str) -> st.SearchStrategy[History]:
    trouble = st.sampled_from(["", "", "", *troubles])
    return st.lists(st.tuples(st.sampled_from([1, 5, 40]), memory, pods, trouble), max_size=40)


@given(histories("lost"))
def test_what_is_stored_is_what_publishing_all_of_every_round_would_store(history: History) -> None:
    bus, _, well = publish_rounds(history)

    assert keep_first(bus.stored) == keep_first(map(whole, well))


@given(histories("lost", "stored"))
def test_a_report_in_doubt_makes_nothing_up_and_loses_its_own_round_at_most(
    history: History,
) -> None:
    bus, every, well = publish_rounds(history)

    found = keep_first(bus.stored).items()
    assert found <= keep_first(map(whole, every)).items()
    assert found >= keep_first(map(whole, well)).items()


def report_of(at: datetime, *, earlier: Sequence[datetime] = ()) -> Usage:
    """One card, the same in all rounds."""
    card = DeviceSample(uuid="GPU-1", index=0, type="A100")
    past = (Unchanged(rounds=len(earlier), devices=(card,)),) if earlier else ()
    return Usage(
        node="n",
        agent_id="a",
        sequence=1,
        sampled_at=at,
        devices=(card,),
        containers=(),
        unchanged=past,
        earlier_rounds=tuple(earlier),
    )


@pytest.mark.parametrize(
    "report",
    [
        report_of(START - timedelta(hours=1, seconds=1)),
        report_of(START + timedelta(minutes=5, seconds=1)),
        report_of(datetime(2036, 11, 26, tzinfo=UTC)),
        report_of(START, earlier=[START - timedelta(seconds=5), START + timedelta(minutes=6)]),
    ],
)
def test_dates_that_no_right_clock_writes_are_refused(report: Usage) -> None:
    with pytest.raises(InvalidRequest, match=r"sampled_at|earlier_rounds .* set the node's clock"):
        samples_of(report, received_at=START)


@pytest.mark.parametrize("at", [START - timedelta(hours=1), START + timedelta(minutes=5)])
def test_a_clock_that_is_a_little_off_is_believed(at: datetime) -> None:
    assert [sample.sampled_at for sample in samples_of(report_of(at), received_at=START)] == [at]


def test_after_a_long_outage_the_rounds_of_before_it_are_left_out_and_the_new_one_stored() -> None:
    before, recent = START - timedelta(hours=3), START - timedelta(minutes=59)

    stored = samples_of(report_of(START, earlier=[before, recent]), received_at=START)

    assert [sample.sampled_at for sample in stored] == [START, recent]


@given(histories())
def test_no_sample_waits_longer_than_the_next_heartbeat(history: History) -> None:
    bus, _, _ = publish_rounds(history)

    for report in bus.stored:
        heartbeats = {heartbeat_of("n", at) for at in report.earlier_rounds}
        assert len(heartbeats) <= 1
