"""Many processes of one container share one slice: races, kills, forks, unusable files."""

import os
import random
import struct
from pathlib import Path

import pytest

from tests.native.machine import LIBVGPU, MIB, Client, Container, Machine
from tests.waiting import wait

OUT_OF_MEMORY = 2


def open_context(client: Client) -> Client:
    assert client.call("open_device") == {"result": 0}
    return client


def test_two_processes_share_one_slice(container: Container) -> None:
    container.limit(100 * MIB)
    one, two = open_context(container.start()), open_context(container.start())
    held = one.alloc(60 * MIB)[1]
    assert two.info() == (40 * MIB, 100 * MIB)
    assert two.alloc(41 * MIB)[0] == OUT_OF_MEMORY
    assert two.alloc(40 * MIB)[0] == 0
    assert one.free(held) == 0
    assert two.info() == (60 * MIB, 100 * MIB)


def test_two_containers_on_one_card_do_not_see_each_other(
    machine: Machine, container: Container
) -> None:
    (machine.folder / "other").mkdir()
    other = Container(machine, machine.folder / "other")
    container.limit(100 * MIB)
    other.limit(200 * MIB)
    one, two = open_context(container.start()), open_context(other.start())
    assert one.alloc(100 * MIB)[0] == 0
    assert two.info() == (200 * MIB, 200 * MIB)
    assert two.alloc(200 * MIB)[0] == 0


def test_sixteen_racing_processes_never_exceed_the_slice(
    container: Container, machine: Machine
) -> None:
    limit = 16 * MIB
    container.limit(limit)
    clients = [open_context(container.start()) for _ in range(16)]
    machine.ctl("reset-peak")
    for client in clients:
        client.send("churn", bytes=700_001, rounds=30)
    assert sum(client.receive()["refused"] for client in clients) == 16 * 30
    # The card rounds each block up to 512 bytes; the slice counts the requested size.
    blocks = limit // 700_001
    assert 0 < machine.peak() <= blocks * (700_001 // 512 + 1) * 512
    assert machine.used_bytes() == 0
    assert clients[0].info() == (limit, limit)
    assert clients[0].alloc(limit)[0] == 0


def test_the_memory_of_a_killed_process_is_free_again(container: Container) -> None:
    container.limit(100 * MIB)
    victim, survivor = open_context(container.start()), open_context(container.start())
    assert victim.alloc(90 * MIB)[0] == 0
    assert survivor.alloc(20 * MIB)[0] == OUT_OF_MEMORY
    victim.kill()
    assert survivor.alloc(100 * MIB)[0] == 0


def test_processes_killed_at_any_moment_leave_nothing_behind(
    container: Container, machine: Machine
) -> None:
    limit = 8 * MIB
    container.limit(limit)
    survivor = open_context(container.start())
    choose = random.Random(7)
    for _ in range(15):
        victims = [open_context(container.start()) for _ in range(2)]
        for victim in victims:
            victim.send("churn", bytes=choose.randrange(1000, 50_000), rounds=100_000)
        # The survivor's own work is the clock: some hundred allocations later the others die.
        assert survivor.call("churn", bytes=65_537, rounds=choose.randrange(1, 4))["refused"] > 0
        for victim in victims:
            victim.kill()
    assert survivor.info() == (limit, limit)
    assert survivor.alloc(limit)[0] == 0
    assert survivor.alloc(1)[0] == OUT_OF_MEMORY
    assert machine.used_bytes() == limit


def test_a_total_left_too_high_by_a_kill_is_repaired_before_anybody_is_refused(
    container: Container,
) -> None:
    container.limit(10 * MIB)
    client = open_context(container.start())
    # slots[0].util[0].spare[0]: as if a process died after raising the total, before its share.
    with container.region.open("r+b") as file:
        file.seek(1856 + 1160 + 24)
        file.write(struct.pack("<Q", 9 * MIB))
    assert client.alloc(10 * MIB)[0] == 0
    assert client.alloc(1)[0] == OUT_OF_MEMORY


SLOT, TOTAL = 1856, 1856 + 1160 + 24  # of the region: the first slot; reserved bytes of device 0


def scribble(container: Container, at: int, layout: str, *values: int) -> None:
    with container.region.open("r+b") as file:
        file.seek(at)
        file.write(struct.pack(layout, *values))


@pytest.mark.parametrize(
    ("at", "layout", "values"),
    [
        (TOTAL, "<Q", (0,)),
        (SLOT + 8 + 16, "<Q16xQ", (0, 0)),  # data and total of its share
        (SLOT, "<i", (0,)),
        (SLOT, "<i", (999_999,)),
        (SLOT, "<ii", (1, 1)),
        (SLOT + 8 + 40, "<Q", (1,)),  # its start time: others take it for dead
        (1600, "<Q", (1 << 60,)),
        (2008896, "<i", (0,)),
        (2008896, "<i", (-7,)),
    ],
    ids=[
        "total",
        "share",
        "gone",
        "another-pid",
        "another-host-pid",
        "born",
        "limit",
        "none",
        "minus",
    ],
)
def test_what_a_tenant_writes_into_the_region_wins_it_nothing(
    container: Container, machine: Machine, at: int, layout: str, values: tuple[int, ...]
) -> None:
    container.limit(10 * MIB)
    client = open_context(container.start())
    assert client.alloc(8 * MIB)[0] == 0
    truth = container.region.read_bytes()[at:][: struct.calcsize(layout)]
    scribble(container, at, layout, *values)
    assert client.alloc(4 * MIB)[0] == OUT_OF_MEMORY
    # Once this process has looked (every 10 ms at most), the others are held to it again.
    harmless = at == 1600 or layout == "<ii"
    wait(
        lambda: (
            client.info()[0] == 2 * MIB
            and (harmless or container.region.read_bytes()[at:].startswith(truth))
        ),
        "the slice to show what is held",
        why=lambda: str(client.info()),
    )
    other = open_context(container.start())
    assert other.alloc(4 * MIB)[0] == OUT_OF_MEMORY
    assert machine.used_bytes() == 8 * MIB
    assert other.alloc(2 * MIB)[0] == 0


def test_a_forked_child_shares_the_slice_and_owes_nothing_for_its_parent(
    container: Container,
) -> None:
    container.limit(10 * MIB)
    client = open_context(container.start())
    client.alloc(6 * MIB)
    child = client.call("fork_and_alloc", bytes=3 * MIB)
    assert child["before"]["free"] == 4 * MIB
    assert child["result"] == 0
    assert client.info() == (4 * MIB, 10 * MIB)
    assert client.call("fork_and_alloc", bytes=5 * MIB)["result"] == OUT_OF_MEMORY


def test_a_region_file_that_cannot_be_used_still_leaves_the_limit(machine: Machine) -> None:
    container = Container(machine, machine.folder, Path("/nowhere/at/all.cache"))
    container.limit(10 * MIB)
    client = open_context(container.start())
    assert client.info() == (10 * MIB, 10 * MIB)
    assert client.alloc(11 * MIB)[0] == OUT_OF_MEMORY


@pytest.mark.parametrize(
    "content", [b"", b"x" * 100, b"\xff" * 2008953], ids=["empty", "short", "garbage"]
)
def test_a_damaged_region_file_still_leaves_the_limit(container: Container, content: bytes) -> None:
    container.region.write_bytes(content)
    container.limit(10 * MIB)
    client = open_context(container.start())
    assert client.info()[1] == 10 * MIB
    assert client.alloc(11 * MIB)[0] == OUT_OF_MEMORY
    assert client.alloc(10 * MIB)[0] == 0


def test_a_region_of_a_foreign_version_is_left_alone(container: Container) -> None:
    foreign = struct.pack("<iII", 19920718, 9, 0).ljust(2008953, b"\0")
    container.region.write_bytes(foreign)
    container.limit(10 * MIB)
    assert open_context(container.start()).alloc(11 * MIB)[0] == OUT_OF_MEMORY
    assert container.region.read_bytes() == foreign


def test_every_user_of_the_container_may_open_the_region(container: Container) -> None:
    container.limit(10 * MIB)
    open_context(container.start())
    assert container.region.stat().st_mode & 0o777 == 0o666


def test_without_nvml_the_limits_hold(container: Container, machine: Machine) -> None:
    library = machine.folder / "cuda-only"
    library.mkdir()
    (library / "libcuda.so.1").symlink_to(LIBVGPU.parents[2] / "fakegpu/build/libcuda.so.1")
    container.limit(10 * MIB)
    client = open_context(container.start(LD_LIBRARY_PATH=str(library)))
    assert client.info() == (10 * MIB, 10 * MIB)


@pytest.mark.skipif(os.geteuid() != 0, reason="a pid namespace of one's own needs root")
def test_processes_with_equal_pids_in_different_containers_are_distinguished(
    machine: Machine, container: Container
) -> None:
    (machine.folder / "other").mkdir()
    other = Container(machine, machine.folder / "other")
    container.limit(100 * MIB)
    other.limit(200 * MIB)
    apart = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    one = open_context(machine.start(container.env(), apart))
    two = open_context(machine.start(other.env(), apart))

    assert one.alloc(60 * MIB)[0] == 0
    assert two.alloc(150 * MIB)[0] == 0
    assert machine.used_bytes() == 210 * MIB
    assert one.info() == (40 * MIB, 100 * MIB)

    two.kill()  # unshare, and with it the container's process 1

    assert one.alloc(40 * MIB)[0] == 0
    wait(lambda: machine.used_bytes() == 100 * MIB, "the memory of the killed container to be free")
