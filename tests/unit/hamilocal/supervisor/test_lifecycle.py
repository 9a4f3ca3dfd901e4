"""What to start, restart and stop: rules, no processes."""

from dataclasses import replace

from hamilocal.supervisor.lifecycle import (
    ALIVE,
    ChildState,
    Phase,
    RestartPolicy,
    all_stopped,
    decide,
    on_end,
    on_ready,
    on_start,
    on_stop,
)
from hypothesis import given, settings
from hypothesis import strategies as st

POLICY = RestartPolicy()


def family(**phases: Phase) -> dict[str, ChildState]:
    """postgres <- scheduler <- agent, in the given phases."""
    after = {"postgres": (), "scheduler": ("postgres",), "agent": ("scheduler",)}
    return {
        name: ChildState(name=name, after=after[name], phase=phases.get(name, Phase.WAITING))
        for name in after
    }


def test_only_what_depends_on_nothing_starts_first() -> None:
    assert decide(family(), 0.0, stopping=False).start == ("postgres",)


def test_a_child_starts_once_everything_before_it_is_ready() -> None:
    children = family(postgres=Phase.STARTING)
    assert decide(children, 0.0, stopping=False).start == ()
    children["postgres"] = on_ready(children["postgres"], 1.0)
    assert decide(children, 1.0, stopping=False).start == ("scheduler",)


def test_pauses_double_and_are_bounded() -> None:
    child = ChildState(name="a", phase=Phase.READY)
    pauses = []
    for _ in range(8):
        child = on_end(replace(child, phase=Phase.READY), 100.0, "died", POLICY)
        pauses.append(round(child.resume_at_s - 100.0, 3))
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_a_calm_minute_makes_the_next_pause_short_again() -> None:
    child = ChildState(name="a", phase=Phase.READY, exits_s=(0.0, 1.0, 2.0))
    assert on_end(child, 63.0, "died", POLICY).resume_at_s == 63.1


def test_twenty_ends_within_ten_minutes_are_enough() -> None:
    child = ChildState(name="a", phase=Phase.READY)
    for turn in range(20):
        assert child.phase is not Phase.GIVEN_UP
        child = on_end(replace(child, phase=Phase.READY), turn * 20.0, "exit status 3", POLICY)
    assert child.phase is Phase.GIVEN_UP
    assert child.reason == "exit status 3; given up after 20 ends within 600 s"


def test_a_child_that_dies_now_and_then_is_never_given_up() -> None:
    child = ChildState(name="a", phase=Phase.READY)
    for turn in range(200):
        child = on_end(replace(child, phase=Phase.READY), turn * 31.6, "died", POLICY)
    assert child.phase is Phase.BACKING_OFF


def test_a_restart_is_counted_a_first_start_is_not() -> None:
    child = on_start(ChildState(name="a"), 0.0)
    assert child.restarts == 0
    assert on_start(on_end(child, 1.0, "died", POLICY), 2.0).restarts == 1


def test_a_child_that_is_not_ready_in_time_is_killed() -> None:
    children = {"a": on_start(ChildState(name="a", start_timeout_s=30.0), 0.0)}
    assert decide(children, 29.9, stopping=False).kill == ()
    assert decide(children, 29.9, stopping=False).wake_at_s == 30.0
    assert decide(children, 30.0, stopping=False).kill == ("a",)


def test_stopping_goes_from_the_last_to_the_first() -> None:
    ready = Phase.READY
    children = family(postgres=ready, scheduler=ready, agent=ready)
    order = []
    while not all_stopped(children.values()):
        for name in decide(children, 0.0, stopping=True).terminate:
            order.append(name)
            stopping = on_stop(children[name], 0.0)
            children[name] = on_end(stopping, 0.0, "", POLICY)
    assert order == ["agent", "scheduler", "postgres"]


def test_what_does_not_stop_within_its_grace_is_killed() -> None:
    children = {"a": on_stop(ChildState(name="a", phase=Phase.READY), 0.0)}
    assert decide(children, 9.9, stopping=True).kill == ()
    assert decide(children, 10.0, stopping=True).kill == ("a",)


def test_what_waits_for_its_next_start_needs_no_signal_to_stop() -> None:
    waiting = on_end(ChildState(name="a", phase=Phase.READY), 0.0, "died", POLICY)
    assert on_stop(waiting, 0.0).phase is Phase.STOPPED


@settings(max_examples=100)
@given(st.lists(st.sampled_from(list(Phase)), min_size=3, max_size=3), st.floats(0, 1000))
def test_stopping_always_ends_whatever_the_phases(phases: list[Phase], now_s: float) -> None:
    children = family(**dict(zip(("postgres", "scheduler", "agent"), phases, strict=True)))
    for _ in range(10):
        for name in decide(children, now_s, stopping=True).terminate:
            children[name] = on_stop(children[name], now_s)
        for name, child in children.items():
            if child.phase is Phase.STOPPING:
                children[name] = on_end(child, now_s, "", POLICY)
    assert not any(child.phase in ALIVE for child in children.values())
