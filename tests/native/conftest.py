"""Fixtures of the native tests; the machine and its programs are in machine.py."""

import functools
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.native.compiled import compile_program
from tests.native.machine import ROOT, Container, Machine


@pytest.fixture(scope="session", autouse=True)
def native_build() -> None:
    """The libraries as of now: an incremental build."""
    subprocess.run(["make", "-s", "-C", ROOT / "native"], check=True, timeout=300)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine.with_two_cards(tmp_path)
    yield made
    for client in made.clients:
        client.end()


@pytest.fixture
def container(machine: Machine) -> Container:
    return Container(machine, machine.folder)


@pytest.fixture
def compile_c(tmp_path: Path) -> Callable[..., Path]:
    """compile_c(source, *options) -> program"""
    return functools.partial(compile_program, tmp_path)
