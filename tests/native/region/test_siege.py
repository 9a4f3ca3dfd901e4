"""Many processes on one slice: 64 that race for it, and processes killed at any instruction."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.native.driver_calls import DATA
from tests.native.machine import MIB, Container, Machine

LIMIT = 16 * MIB
OUT_OF_MEMORY = 2


@pytest.fixture
def siege(compile_c: Callable[..., Path], container: Container) -> Callable[..., Any]:
    program = compile_c((DATA / "siege.c").read_text(), "-O1", "-ldl", name="siege")
    container.limit(LIMIT)

    def run(*arguments: object) -> Any:
        done = subprocess.run(
            [program, *map(str, arguments)],
            env=container.env(),
            capture_output=True,
            text=True,
            timeout=280,
            check=True,
        )
        assert done.stderr == ""
        return json.loads(done.stdout)

    return run


def test_64_racing_processes_get_the_slice_and_not_a_byte_more(
    siege: Callable[..., Any], machine: Machine
) -> None:
    outcome = siege("race", 64, 40, LIMIT)
    # The card's own account: the most that was ever given away is the slice.
    assert machine.peak() == LIMIT
    assert outcome == {"failed": 0, "whole": 0, "beyond": OUT_OF_MEMORY}
    assert machine.used_bytes() == 0


@pytest.mark.parametrize(
    "points", [300, pytest.param(10_000, marks=pytest.mark.slow)], ids=["300", "10000"]
)
def test_a_process_killed_at_any_moment_holds_nobody_up_and_leaves_exact_accounts(
    siege: Callable[..., Any], points: int
) -> None:
    outcome = siege("kill", points, LIMIT, points)
    assert outcome["points"] == points
    assert (outcome["inexact"], outcome["late"]) == (0, 0), outcome
