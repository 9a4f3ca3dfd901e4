"""The ways around the library that it can't close (tests/native/hostile), from outside.

Each program first allocates a little past the library, and then more than its grant.
"""

import asyncio
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.node_agent.control import Control
from tests.integration.node_agent.machine import FAKEGPU, AgentProcess, Machine
from tests.integration.node_agent.tenants import GRACE_S, Proc, Tenants, all_seen
from tests.native.compiled import compile_program
from tests.native.machine import MIB, ROOT

pytestmark = pytest.mark.native

DATA = ROOT / "tests/native/data"
SOURCES = ROOT / "native/fakegpu/src"
BEYOND = 6144 * MIB
"""Memory use above the slice of 4096 MiB."""
Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def starts(tenants: Tenants, tmp_path: Path) -> dict[str, Start]:
    """By way: a function that starts its program in a pod's container."""

    def build_program(name: str, *options: str | Path) -> Path:
        return compile_program(
            tmp_path, (DATA / f"{name}.c").read_text(), "-w", *options, name=name
        )

    escape = build_program("escape", "-ldl")
    shared = ("-shared", "-fPIC")
    audit = build_program("audit", *shared)
    linked = build_program("linked", *shared, f"-L{FAKEGPU}", "-l:libcuda.so.1")
    rooms = ("state", "machine", "card")
    machine = [FAKEGPU / f"{c.stem}.o" for room in rooms for c in (SOURCES / room).glob("*.c")]
    includes = (f"-I{SOURCES}", f"-I{ROOT / 'native/libvgpu/include'}")
    raw = build_program("raw", "-static", *includes, *machine, "-pthread")
    return {
        "the driver's symbol table": lambda pod: tenants.run(pod, escape, "elf"),
        "the symbol table of a driver in a namespace of its own": lambda pod: tenants.run(
            pod, escape, "namespace-elf"
        ),
        "LD_AUDIT": lambda pod: tenants.run(pod, escape, "plain", LD_AUDIT=str(audit)),
        "a library bound to the driver": lambda pod: tenants.run(
            pod, escape, "library-deepbind", linked
        ),
        "a library in a namespace of its own": lambda pod: tenants.run(
            pod, escape, "library-namespace", linked
        ),
        "a static program without libcuda": lambda pod: tenants.run(pod, raw),
    }


def answer(program: subprocess.Popen[str]) -> int:
    """Return the allocation's CUresult."""
    assert program.stdout
    return int(program.stdout.readline().split()[0])


@pytest.fixture(
    params=[
        pytest.param((GRACE_S, 0.3), id="soon"),
        pytest.param((10.0, 5.0), id="as installed", marks=pytest.mark.slow),
    ]
)
def grace_s(request: pytest.FixtureRequest, machine: Machine, proc: Proc) -> float:
    """Grace period of the agent, which samples at the given interval."""
    grace_s, interval_s = request.param
    machine.extra |= {
        "HAMI_NODE_AGENT_ENFORCEMENT_GRACE_S": str(grace_s),
        "HAMI_NODE_AGENT_SAMPLE_INTERVAL_S": str(interval_s),
    }
    return float(grace_s)


async def test_every_way_that_is_not_held_is_seen(
    grace_s: float,
    tenants: Tenants,
    starts: dict[str, Start],
    agent: AgentProcess,
    control: Control,
) -> None:
    programs: dict[str, subprocess.Popen[str]] = {}
    began_s: dict[str, float] = {}
    what: dict[str, str] = {}
    for number, (way, start) in enumerate(starts.items()):
        pod = f"way-{number}"
        await tenants.create_with_slice(pod, control, device=number)
        programs[pod], what[pod] = start(pod), way
        assert await asyncio.to_thread(answer, programs[pod]) == 0
        began_s[pod] = time.monotonic()
    await all_seen(agent, began_s, "bypassed", what, grace_s=grace_s)

    for pod, program in programs.items():
        assert program.stdin
        program.stdin.write(f"{BEYOND}\n")
        program.stdin.flush()
        assert await asyncio.to_thread(answer, program) == 0
        began_s[pod] = time.monotonic()
    await all_seen(agent, began_s, "exceeded", what, grace_s=grace_s)
