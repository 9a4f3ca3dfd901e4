"""Selection of the samples of a round that are published."""

from collections import Counter
from datetime import UTC, datetime, timedelta

from hami_node_agent.usage.changes import Changes, PublishedState, Round, changes, heartbeat_of
from hamicommon.events import (
    USAGE_HEARTBEAT_S,
    USAGE_MAX_ROUNDS,
    ContainerSample,
    DeviceSample,
    Unchanged,
)

NODE = "n"
# The first second of a heartbeat of that node.
START = next(
    at
    for at in (datetime(2026, 11, 20, 10, 0, second, tzinfo=UTC) for second in range(1, 60))
    if heartbeat_of(NODE, at) != heartbeat_of(NODE, at - timedelta(seconds=1))
)
CARD = DeviceSample(uuid="GPU-1", index=0, type="A100", memory_used_bytes=500, gpu_percent=0.0)
BUSY_CARD = CARD.model_copy(update={"gpu_percent": 40.0})


def slice_of(pod: str, *, memory: int = 100) -> ContainerSample:
    return ContainerSample(
        pod_uid=pod,
        namespace="ns",
        pod=pod,
        container="c",
        vdevice_index=0,
        uuid="GPU-1",
        memory_used_bytes=memory,
        core_percent=0.0,
    )


def a_round(
    second: float,
    *containers: ContainerSample,
    card: DeviceSample = CARD,
) -> Round:
    return Round(
        sampled_at=START + timedelta(seconds=second), devices=(card,), containers=containers
    )


def moments(*seconds: float) -> tuple[datetime, ...]:
    return tuple(START + timedelta(seconds=second) for second in seconds)


def after(*rounds: Round) -> PublishedState:
    """Return the known values after these were published."""
    published = PublishedState()
    for one in rounds:
        published = changes(NODE, published, one).published
    return published


def parts(
    found: Changes,
) -> tuple[tuple[DeviceSample, ...], tuple[ContainerSample, ...], tuple[Unchanged, ...]]:
    return found.devices, found.containers, found.unchanged


def test_the_first_round_is_published_whole() -> None:
    assert parts(changes(NODE, PublishedState(), a_round(0, slice_of("a")))) == (
        (CARD,),
        (slice_of("a"),),
        (),
    )


def test_of_a_round_like_the_one_before_nothing_is_published() -> None:
    published = after(a_round(0, slice_of("a")))

    assert not changes(NODE, published, a_round(5, slice_of("a")))


def test_a_change_is_published_alone_and_at_once_with_the_rounds_of_the_old_value() -> None:
    published = after(*(a_round(second, slice_of("a"), slice_of("b")) for second in (0, 5, 10)))

    found = changes(NODE, published, a_round(15, slice_of("a", memory=7), slice_of("b")))

    assert parts(found) == (
        (),
        (slice_of("a", memory=7),),
        (Unchanged(rounds=2, containers=(slice_of("a"),)),),
    )
    assert found.earlier_rounds == moments(5, 10)


def test_a_value_of_one_round_was_published_already() -> None:
    published = after(a_round(0, slice_of("a")))

    found = changes(NODE, published, a_round(5, slice_of("a", memory=7)))

    assert parts(found) == ((), (slice_of("a", memory=7),), ())


def test_of_a_container_that_is_gone_the_end_is_published() -> None:
    published = after(a_round(0, slice_of("a")), a_round(5, slice_of("a")))

    found = changes(NODE, published, a_round(10))

    assert parts(found) == ((), (), (Unchanged(rounds=1, containers=(slice_of("a"),)),))
    assert found.earlier_rounds == moments(5)
    assert not changes(NODE, found.published, a_round(15))


def test_once_in_a_heartbeat_everything_is_published() -> None:
    published = after(a_round(50, slice_of("a")), a_round(55, slice_of("a"), card=BUSY_CARD))

    found = changes(NODE, published, a_round(USAGE_HEARTBEAT_S, slice_of("a"), card=BUSY_CARD))

    assert parts(found) == (
        (BUSY_CARD,),
        (slice_of("a"),),
        (Unchanged(rounds=1, containers=(slice_of("a"),)),),
    )


def test_after_as_many_rounds_as_a_report_can_name_everything_is_published() -> None:
    published = after(*(a_round(n / 10) for n in range(USAGE_MAX_ROUNDS)))

    found = changes(NODE, published, a_round(USAGE_MAX_ROUNDS / 10))

    assert parts(found) == (
        (CARD,),
        (),
        (Unchanged(rounds=USAGE_MAX_ROUNDS - 1, devices=(CARD,)),),
    )
    assert not changes(NODE, found.published, a_round(USAGE_MAX_ROUNDS / 10 + 0.1))


def test_what_ended_at_one_moment_is_published_together_when_it_lasted_alike() -> None:
    published = after(
        a_round(0, slice_of("a")),
        a_round(5, slice_of("a"), slice_of("b")),
        a_round(10, slice_of("a"), slice_of("b")),
    )

    found = changes(NODE, published, a_round(15, card=BUSY_CARD))

    assert found.unchanged == (
        Unchanged(rounds=1, containers=(slice_of("b"),)),
        Unchanged(rounds=2, devices=(CARD,), containers=(slice_of("a"),)),
    )


def test_what_a_lost_report_owed_is_published_again_as_it_was() -> None:
    published = after(a_round(0, slice_of("a")), a_round(5, slice_of("a")))
    lost = changes(NODE, published, a_round(10, slice_of("a", memory=7)))

    found = changes(NODE, published, a_round(15, slice_of("a", memory=8)))

    assert lost.unchanged == (Unchanged(rounds=1, containers=(slice_of("a"),)),)
    assert parts(found) == ((), (slice_of("a", memory=8),), lost.unchanged)
    assert found.earlier_rounds == lost.earlier_rounds == moments(5)


def test_nodes_publish_everything_at_different_seconds() -> None:
    beats = [
        [heartbeat_of(f"node-{n}", START + timedelta(seconds=second)) for second in range(60)]
        for n in range(1000)
    ]

    begins = Counter(beat.index(beat[-1]) for beat in beats if beat[0] != beat[-1])
    assert max(begins.values()) < 2.5 * 1000 / USAGE_HEARTBEAT_S
