"""The first call needs as little stack as the driver's: programs make it from small threads too."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.driver_calls import DATA
from tests.native.machine import CARDS, MIB, Container

FIRST_CALLS = ["init", "alloc", "launch", "nvml", "child"]


@pytest.fixture
def program(compile_c: Callable[..., Path]) -> Path:
    return compile_c((DATA / "small_stack.c").read_text(), "-ldl", "-pthread")


def run(program: Path, env: dict[str, str], *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [program, *arguments], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("first", FIRST_CALLS)
def test_the_first_call_may_come_from_a_thread_of_16_kib(
    container: Container, program: Path, first: str
) -> None:
    lines = (f"device {card} memory_bytes {64 * MIB} core_percent 50\n" for card in CARDS)
    container.limits("hami-limits 1\npolicy force\n" + "".join(lines))

    # The driver without the library can; so can the library, also with its most verbose log.
    assert run(program, container.machine.env(), first) == (0, "")
    assert run(program, container.env(), first) == (0, "")
    assert run(program, container.env(LIBCUDA_LOG_LEVEL="4"), first)[0] == 0
    assert container.region.exists()


def test_without_a_limits_file_too(container: Container, program: Path) -> None:
    env = container.env(CUDA_DEVICE_MEMORY_LIMIT="64m", CUDA_DEVICE_SM_LIMIT="50")
    for first in FIRST_CALLS:
        assert run(program, env, first) == (0, ""), first
