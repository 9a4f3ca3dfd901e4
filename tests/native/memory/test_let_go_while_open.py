"""Shared memory that its maker releases stays charged while the container has it open.

NVML counts it once, for one of its holders, and for the next one when that one releases it. Whether
or not NVML lists the processes, the container is charged the same.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.native.driver_program import Program
from tests.native.machine import MIB, Container, Machine
from tests.native.memory.sharing_program import SHELL, ask

LIMIT_MIB = 100
OTHER_PIDS = 100_000


@dataclass(frozen=True)
class Way:
    """How memory of 60 MiB is made and shared, let go of by its maker, opened and closed."""

    make: str
    share: str
    let_go: str
    open: tuple[str, ...]
    close: tuple[str, ...]


MAPPED = ("mapped({}, 60)", "released({})")
WAYS = {
    "handle": Way("made(60)", "exported({})", "released({})", ("imported({})",), ("released({})",)),
    "mapped": Way(
        "made(60)", "exported({})", "released({})", ("imported({})", *MAPPED), ("unmapped({})",)
    ),
    "ipc": Way("block(60)", "shown({})", "freed({})", ("opened({})",), ("shut({})",)),
    "ipc-in-a-stream": Way(
        "block(60)", "shown({})", "freed_in_a_stream({})", ("opened({})",), ("shut({})",)
    ),
}
Start = Callable[[], Program]


@pytest.fixture
def start(container: Container) -> Iterator[Start]:
    """A program in the container; ended by the test or by kill."""
    container.limit(LIMIT_MIB * MIB)
    started: list[Program] = []

    def run() -> Program:
        one = Program(container.machine, SHELL, env=container.env())
        started.append(one)
        assert one.line() == "ready"
        return one

    yield run
    for one in started:
        one.process.kill()
        one.process.communicate()


@pytest.fixture(params=["listed", "not listed"])
def listed(request: pytest.FixtureRequest, machine: Machine) -> bool:
    """Whether NVML lists the container's processes under pids that they know."""
    if request.param != "listed":
        machine.settings["pid_offset"] = OTHER_PIDS
        machine.write()
    return bool(request.param == "listed")


def share_memory(maker: Program, way: Way) -> tuple[str, str]:
    """Return (the maker's handle, where others find it)."""
    at = ask(maker, way.make)
    return at, ask(maker, way.share.format(at))


def open_memory(holder: Program, way: Way, where: str) -> str:
    first, *further = way.open
    at = ask(holder, first.format(repr(where)))
    for step in further:
        ask(holder, step.format(at))
    return at


def close_memory(holder: Program, way: Way, at: str) -> None:
    for step in way.close:
        ask(holder, step.format(at))


def kill(program: Program) -> None:
    program.process.kill()
    program.process.communicate()


@pytest.mark.usefixtures("listed")
@pytest.mark.parametrize("way", WAYS)
def test_what_a_living_maker_lets_go_of_stays_charged_once_until_it_is_closed(
    start: Start, machine: Machine, way: str
) -> None:
    # No process was charged: the holder had 60 MiB and a whole slice besides.
    maker, holder, third = start(), start(), start()
    made, where = share_memory(maker, WAYS[way])
    there = open_memory(holder, WAYS[way], where)
    ask(maker, WAYS[way].let_go.format(made))
    assert [ask(one, "free_mib()") for one in (third, holder, maker)] == ["40"] * 3
    assert ask(third, "try_to_take(41), try_to_take(40)") == "(2, 0)"
    assert machine.used_bytes() == 60 * MIB
    # A look at NVML shows the holder with it: the same bytes, not as many more.
    assert [ask(one, "look()") for one in (holder, maker, holder)] == ["40"] * 3
    assert ask(third, "try_to_take(41), try_to_take(40)") == "(2, 0)"
    close_memory(holder, WAYS[way], there)
    assert ask(holder, "look()") == "100"
    assert ask(third, "try_to_take(100)") == "0"
    assert machine.used_bytes() == 0


@pytest.mark.usefixtures("listed")
@pytest.mark.parametrize("looked", [False, True])
def test_a_further_handle_in_one_process_keeps_the_charge(
    start: Start, machine: Machine, looked: bool
) -> None:
    # Each import has its own handle, without a link to the original one.
    one, other = start(), start()
    made, where = share_memory(one, WAYS["handle"])
    handles = [ask(one, f"imported({where!r})") for _ in range(2)]
    ask(one, f"closed({where!r})")
    for at in (made, handles[0]):
        ask(one, f"released({at})")
        assert ask(other, "free_mib()") == "40"
        if looked:
            assert ask(one, "look()") == "40"
        assert ask(one, "try_to_take(41), try_to_take(40)") == "(2, 0)"
    assert machine.used_bytes() == 60 * MIB
    ask(one, f"released({handles[1]})")
    assert ask(one, "try_to_take(100)") == "0"
    assert ask(other, "try_to_take(100)") == "0"


@pytest.mark.usefixtures("listed")
def test_memory_that_its_maker_keeps_is_charged_once(start: Start) -> None:
    # As PyTorch hands tensors to other processes, by a handle for each piece of a segment.
    maker, holder = start(), start()
    made, where = share_memory(maker, WAYS["mapped"])
    ask(maker, f"mapped({made}, 60)")
    there = open_memory(holder, WAYS["mapped"], where)
    assert [ask(one, "look()") for one in (maker, holder, maker)] == ["40"] * 3
    close_memory(holder, WAYS["mapped"], there)
    assert ask(holder, "look()") == "40"
    ask(maker, f"released({made})")
    assert ask(maker, "look()") == "40"
    ask(maker, f"unmapped({made})")
    assert ask(holder, "try_to_take(100)") == "0"


def test_what_a_descriptor_brings_back_is_charged(start: Start, machine: Machine) -> None:
    # While the descriptor is open, a card keeps it, and NVML shows it for no process (H100); the
    # stand-in driver takes it again with the import, as a card's NVML shows it after the close.
    one, other = start(), start()
    made, where = share_memory(one, WAYS["handle"])
    ask(one, f"released({made})")
    assert ask(one, "free_mib()") == "100"
    again = ask(one, f"imported({where!r})")
    assert machine.used_bytes() == 60 * MIB
    assert ask(one, "free_mib()") == "40"
    assert ask(other, "free_mib(), try_to_take(41)") == "(40, 2)"
    ask(one, f"released({again})")
    assert ask(one, "try_to_take(100)") == "0"
    assert ask(other, "try_to_take(100)") == "0"


@pytest.mark.parametrize("way", ["handle", "ipc"])
def test_a_killed_maker_that_nvml_forgets_first_leaves_nothing_twice(
    start: Start, way: str
) -> None:
    maker, holder, third = start(), start(), start()
    _, where = share_memory(maker, WAYS[way])
    there = open_memory(holder, WAYS[way], where)
    kill(maker)
    assert ask(holder, "look()") == "40"
    assert ask(third, "try_to_take(41), try_to_take(40)") == "(2, 0)"
    close_memory(holder, WAYS[way], there)
    assert ask(holder, "look()") == "100"
    assert ask(third, "try_to_take(100)") == "0"


@pytest.mark.usefixtures("listed")
def test_a_maker_that_let_go_and_is_killed_takes_nothing_along(start: Start) -> None:
    maker, holder, third = start(), start(), start()
    made, where = share_memory(maker, WAYS["mapped"])
    there = open_memory(holder, WAYS["mapped"], where)
    ask(maker, f"released({made})")
    kill(maker)
    assert ask(third, "free_mib(), try_to_take(41)") == "(40, 2)"
    close_memory(holder, WAYS["mapped"], there)
    assert ask(third, "free_mib(), try_to_take(100)") == "(100, 0)"


@pytest.mark.usefixtures("listed")
@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("first", [0, 1])
def test_the_next_holder_has_what_the_first_one_gives_up(
    start: Start, machine: Machine, first: int, end: str
) -> None:
    # NVML shows it with one of them; that one's end must not be the end of the charge.
    maker, *holders = (start() for _ in range(3))
    made, where = share_memory(maker, WAYS["mapped"])
    there = [open_memory(holder, WAYS["mapped"], where) for holder in holders]
    ask(maker, f"released({made})")
    assert [ask(one, "look()") for one in holders] == ["40"] * 2
    if end == "killed":
        kill(holders[first])
    else:
        close_memory(holders[first], WAYS["mapped"], there[first])
        assert ask(holders[first], "look()") == "40"
    assert ask(maker, "free_mib(), try_to_take(41)") == "(40, 2)"
    last = holders[1 - first]
    assert ask(last, "look()") == "40"
    assert machine.used_bytes() == 60 * MIB
    close_memory(last, WAYS["mapped"], there[1 - first])
    assert ask(last, "look()") == "100"
    assert ask(maker, "try_to_take(100)") == "0"


def test_a_process_that_shares_looks_again_before_it_is_refused(start: Start) -> None:
    # NVML moves it to the holder and away again while that one makes no call.
    maker, holder, next_one = start(), start(), start()
    made, where = share_memory(maker, WAYS["handle"])
    there = [open_memory(one, WAYS["handle"], where) for one in (holder, next_one)]
    ask(maker, f"released({made})")
    assert ask(holder, "look()") == "40"
    assert ask(next_one, "try_to_take(41)") == "2"
    close_memory(holder, WAYS["handle"], there[0])
    close_memory(next_one, WAYS["handle"], there[1])
    assert ask(holder, "try_to_take(100)") == "0"
    assert ask(next_one, "try_to_take(100)") == "0"
