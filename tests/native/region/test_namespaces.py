"""Containers that share a slice (docs/dra.md) have pid namespaces of their own, and one account."""

import os
import shutil
import subprocess

import pytest

from tests.native.machine import MIB, Client, Container, Machine
from tests.waiting import wait

OUT_OF_MEMORY = 2
OWN_PIDS = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


@pytest.fixture
def apart(machine: Machine, container: Container) -> tuple[Client, Client]:
    """Two first processes of pid namespaces of their own, on one slice of 100 MiB."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("pid namespaces are made with unshare, by root")
    if subprocess.run([*OWN_PIDS, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("this kernel or sandbox makes no pid namespaces")
    container.limit(100 * MIB)
    clients = [machine.start(container.env(), OWN_PIDS) for _ in range(2)]
    for client in clients:
        assert client.call("open_device") == {"result": 0}
    return clients[0], clients[1]


def test_processes_of_two_pid_namespaces_have_one_slice(apart: tuple[Client, Client]) -> None:
    one, other = apart
    assert one.alloc(60 * MIB)[0] == 0
    # Both are pid 1 where they are, and neither sees the other.
    assert other.info() == (40 * MIB, 100 * MIB)
    assert other.alloc(41 * MIB)[0] == OUT_OF_MEMORY
    assert other.alloc(40 * MIB)[0] == 0
    assert one.alloc(1)[0] == OUT_OF_MEMORY


def test_what_a_killed_namespace_held_is_free_for_the_other(apart: tuple[Client, Client]) -> None:
    one, other = apart
    assert one.alloc(90 * MIB)[0] == 0
    assert other.alloc(20 * MIB)[0] == OUT_OF_MEMORY
    one.kill()
    wait(lambda: other.alloc(90 * MIB)[0] == 0, "the memory of the killed container")
