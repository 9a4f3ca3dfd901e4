"""Whatever processes do with memory that they share, every held byte is charged."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.native.driver_program import Program
from tests.native.machine import MIB, Container, Machine
from tests.native.memory.sharing_program import SHELL, ask

LIMIT_MIB = 4000  # more than all steps together make: open memory may keep its charge
SIZE_MIB = 10
PROCESSES = 3
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["make", "import", "import", "map", "release", "release", "look"]),
        st.integers(0, 99),
        st.integers(0, 99),
    ),
    min_size=5,
    max_size=25,
)

SOME = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@dataclass
class Handle:
    """A handle of a process; others find the memory at `path`, by the original handle."""

    process: int
    at: str
    path: str
    is_made: bool = False
    is_mapped: bool = False


@dataclass
class Sharing:
    """Processes of a container, and their handles."""

    machine: Machine
    programs: list[Program]
    handles: list[Handle] = field(default_factory=list)

    def step(self, what: str, which: int, more: int) -> None:
        process = which % PROCESSES
        if what == "make":
            at = ask(self.programs[process], f"made({SIZE_MIB})")
            path = ask(self.programs[process], f"exported({at})")
            self.handles.append(Handle(process, at, path, is_made=True))
        elif what == "import" and self.handles:
            # Only memory on the card: what only a descriptor brings back is charged at a look.
            path = self.handles[more % len(self.handles)].path
            at = ask(self.programs[process], f"imported({path!r})")
            self.handles.append(Handle(process, at, path))
        elif what == "map" and self.handles:
            handle = self.handles[more % len(self.handles)]
            if not handle.is_mapped:
                ask(self.programs[handle.process], f"mapped({handle.at}, {SIZE_MIB})")
                handle.is_mapped = True
        elif what == "release" and self.handles:
            self.let_go(self.handles.pop(more % len(self.handles)))
        elif what == "look":
            ask(self.programs[process], "look()")

    def memory_paths(self) -> set[str]:
        return {handle.path for handle in self.handles}

    def let_go(self, handle: Handle) -> None:
        program = self.programs[handle.process]
        if handle.is_mapped:
            ask(program, f"unmapped({handle.at})")
        ask(program, f"released({handle.at})")

    def charged_mib(self) -> list[int]:
        return [LIMIT_MIB - int(ask(program, "free_mib()")) for program in self.programs]

    def used_mib(self) -> int:
        return self.machine.used_bytes() // MIB

    def end(self) -> None:
        while self.handles:
            self.let_go(self.handles.pop())
        for program in self.programs:
            ask(program, "look()")


@pytest.fixture(params=["listed", "not listed"])
def sharing(
    request: pytest.FixtureRequest, machine: Machine, container: Container
) -> Iterator[Sharing]:
    """Processes that NVML lists under pids that they know, or does not."""
    if request.param != "listed":
        machine.settings["pid_offset"] = 100_000
        machine.write()
    container.limit(LIMIT_MIB * MIB)
    programs = [Program(machine, SHELL, env=container.env()) for _ in range(PROCESSES)]
    assert [program.line() for program in programs] == ["ready"] * PROCESSES
    yield Sharing(machine, programs)
    for program in programs:
        program.process.kill()
        program.process.communicate()


@given(steps=STEPS)
@SOME
def test_what_is_held_is_charged_and_goes_with_the_last_of_its_holders(
    sharing: Sharing, steps: list[tuple[str, int, int]]
) -> None:
    try:
        for step in steps:
            sharing.step(*step)
            assert sharing.used_mib() == SIZE_MIB * len(sharing.memory_paths())
            assert min(sharing.charged_mib()) >= sharing.used_mib()
    finally:
        sharing.end()
    assert sharing.charged_mib() == [0] * PROCESSES
    assert sharing.used_mib() == 0


@given(steps=STEPS)
@SOME
def test_what_is_made_once_is_charged_once(
    sharing: Sharing, steps: list[tuple[str, int, int]]
) -> None:
    sharing.step("make", 0, 0)
    try:
        for what, which, more in steps:
            if what != "make":
                sharing.step(what, which, more)
            used = sharing.used_mib()
            assert min(sharing.charged_mib()) >= used
            # Each has looked at NVML now, if its own memory changed; that of others may have moved.
            assert max(sharing.charged_mib()) <= PROCESSES * used
    finally:
        sharing.end()
    assert sharing.charged_mib() == [0] * PROCESSES
