"""How tests wait (`tests/waiting.py`)."""

from collections.abc import Iterator

import pytest

from tests import waiting
from tests.waiting import Unhurried, eventually, wait


@pytest.fixture
def numbers() -> Iterator[int]:
    return iter((0, 0, 7))


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this thread seem to run a quarter of the time; each check takes a second."""
    seconds = iter(range(1000))
    monkeypatch.setattr(waiting.time, "monotonic", lambda: float(next(seconds)))
    scheduled = iter(range(1000))
    monkeypatch.setattr(waiting, "_scheduled_ns", lambda: (now := next(scheduled), 3 * now))


async def test_what_is_seen_at_last_is_returned(numbers: Iterator[int]) -> None:
    async def look() -> int:
        return next(numbers)

    assert await eventually(look) == 7


async def test_a_look_need_not_be_a_coroutine(numbers: Iterator[int]) -> None:
    assert await eventually(lambda: next(numbers)) == 7


def test_the_same_without_a_loop(numbers: Iterator[int]) -> None:
    assert wait(lambda: next(numbers), every_s=0.0) == 7


async def test_what_never_comes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_S", 0.0)

    async def is_shown() -> bool:
        return False

    with pytest.raises(AssertionError, match="not within 0 s: is_shown"):
        await eventually(is_shown)
    with pytest.raises(AssertionError, match="not within 0 s: the pod; it is pending"):
        wait(lambda: False, "the pod", every_s=0.0, why=lambda: "it is pending")


@pytest.mark.usefixtures("hurried")
def test_a_promise_is_counted_in_seconds_of_a_quiet_machine() -> None:
    looks = 0

    def look() -> bool:
        nonlocal looks
        looks += 1
        return False

    with pytest.raises(AssertionError, match="not within 5 s: the end"):
        wait(look, "the end", within_s=5.0, every_s=0.0)
    assert looks == 21  # 5.25 of these seconds


def test_on_any_machine_things_take_at_least_their_time() -> None:
    counted = Unhurried()
    sum(range(1000))
    assert counted.slowdown >= 1
    assert counted.seconds >= 0
