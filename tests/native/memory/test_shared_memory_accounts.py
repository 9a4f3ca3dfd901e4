"""Memory that a process shares by handle stays charged to the container while others have it."""

from collections.abc import Callable, Iterator

import pytest

from tests.native.driver_program import Program
from tests.native.machine import MIB, Container, Machine

LIMIT = 100 * MIB

COMMON = """
from ctypes import c_int, c_longlong

MIB = 1 << 20


class Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * 64)]


def take(mib):
    made = c_uint64()
    return cuda.cuMemAlloc_v2(byref(made), c_size_t(mib * MIB))


def free_mib():
    free, total = c_size_t(), c_size_t()
    ok(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return free.value >> 20


def wait():
    return sys.stdin.readline().strip()
"""

# A process makes 60 MiB, shares it, and prints how another finds it.
IPC_MAKER = """
made, handle = alloc(60 * MIB), Handle()
ok(cuda.cuIpcGetMemHandle(byref(handle), made))
show(ctypes.string_at(byref(handle), 64).hex())
"""
IPC_HOLDER = """
handle, opened = Handle(), c_uint64()
ctypes.memmove(byref(handle), bytes.fromhex(sys.argv[1]), 64)
ok(cuda.cuIpcOpenMemHandle_v2(byref(opened), handle, 1))


def close():
    ok(cuda.cuIpcCloseMemHandle(opened))
"""
HANDLE_MAKER = """
import os

made, file = c_uint64(), c_int()
place = (c_int * 8)(1, 1, 1, 0)
ok(cuda.cuMemCreate(byref(made), c_size_t(60 * MIB), place, c_uint64(0)))
ok(cuda.cuMemExportToShareableHandle(byref(file), made, 1, c_uint64(0)))
show(f"/proc/{os.getpid()}/fd/{file.value}")
"""
HANDLE_HOLDER = """
import os

file, opened, at = os.open(sys.argv[1], os.O_RDWR), c_uint64(), c_uint64()
ok(cuda.cuMemImportFromShareableHandle(byref(opened), c_void_p(file), 1))


def map():
    size, nothing = c_size_t(60 * MIB), c_uint64(0)
    ok(cuda.cuMemAddressReserve(byref(at), size, c_size_t(0), nothing, nothing))
    ok(cuda.cuMemMap(at, c_size_t(60 * MIB), c_size_t(0), opened, c_uint64(0)))
    ok(cuda.cuMemRelease(opened))


def close():
    ok(cuda.cuMemUnmap(at, c_size_t(60 * MIB)) if at.value else cuda.cuMemRelease(opened))
"""
MAPPED_HOLDER = HANDLE_HOLDER + "map()\n"
WAYS = {
    "ipc": (IPC_MAKER, IPC_HOLDER),
    "handle": (HANDLE_MAKER, HANDLE_HOLDER),
    "mapped": (HANDLE_MAKER, MAPPED_HOLDER),
}
Start = Callable[..., Program]


@pytest.fixture
def start(container: Container) -> Iterator[Start]:
    """A program in the container; ended by the test or by kill."""
    container.limit(LIMIT)
    started: list[Program] = []

    def run(body: str, *arguments: str) -> Program:
        one = Program(container.machine, COMMON + body, *arguments, env=container.env())
        started.append(one)
        return one

    yield run
    for one in started:
        one.process.kill()
        one.process.communicate()


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> tuple[str, str]:
    return WAYS[request.param]


def end_program(program: Program, how: str) -> None:
    if how == "killed":
        program.process.kill()
        program.process.communicate()
    else:
        program.go_on()
        program.rest()


@pytest.mark.parametrize("how", ["ended", "killed"])
def test_what_a_maker_leaves_open_stays_charged_until_it_is_closed(
    start: Start, machine: Machine, way: tuple[str, str], how: str
) -> None:
    # The charge went with the maker: the holder had 60 MiB and a whole slice beside.
    maker = start(way[0] + "wait()\n")
    where = maker.line()
    holder = start(
        way[1]
        + "show(free_mib(), take(41))\nwait()\nshow(free_mib(), take(41))\n"
        + "wait()\nclose()\nshow(free_mib(), take(100))\n",
        where,
    )
    assert holder.line() == "40 2"
    end_program(maker, how)
    holder.go_on()
    assert holder.line() == "40 2"
    assert machine.used_bytes() == 60 * MIB
    assert start("show(free_mib(), take(41), take(40))\n").rest() == ["40 2 0"]
    holder.go_on()
    assert holder.rest() == ["100 0"]


@pytest.mark.parametrize("how", ["ended", "killed"])
def test_what_nobody_has_open_goes_with_its_maker(
    start: Start, way: tuple[str, str], how: str
) -> None:
    maker = start(way[0] + "wait()\n")
    where = maker.line()
    holder = start(way[1] + "show(free_mib())\nclose()\nshow(free_mib())\nwait()\n", where)
    assert holder.line() == "40"
    assert holder.line() == "40"
    end_program(maker, how)
    assert start("show(free_mib(), take(100))\n").rest() == ["100 0"]


@pytest.mark.parametrize("how", ["ended", "killed"])
def test_a_holder_that_ends_lets_go(start: Start, way: tuple[str, str], how: str) -> None:
    maker = start(way[0] + "wait()\n")
    where = maker.line()
    holder = start(way[1] + "show(free_mib())\nwait()\n", where)
    assert holder.line() == "40"
    end_program(maker, "killed")
    end_program(holder, how)
    assert start("show(free_mib(), take(100))\n").rest() == ["100 0"]


def test_shared_memory_is_charged_once(start: Start) -> None:
    # Tensors that processes of one program hand to each other must not count twice.
    maker = start(IPC_MAKER + "wait()\nshow(cuda.cuMemFree_v2(made), free_mib())\n")
    where = maker.line()
    holders = [start(IPC_HOLDER + "show(free_mib())\nwait()\nclose()\n", where) for _ in range(3)]
    assert [holder.line() for holder in holders] == ["40"] * 3
    for holder in holders:
        holder.go_on()
        assert holder.rest() == []
    maker.go_on()
    assert maker.rest() == ["0 100"]


def test_makers_that_come_and_go_leave_no_more_than_is_open(start: Start) -> None:
    makers = []
    for _ in range(3):
        maker = start(
            "made, handle = alloc(10 * MIB), Handle()\n"
            "ok(cuda.cuIpcGetMemHandle(byref(handle), made))\n"
            "show(ctypes.string_at(byref(handle), 64).hex())\nwait()\n"
        )
        where = maker.line()
        makers.append(maker)
    holder = start(IPC_HOLDER + "show(free_mib())\nwait()\nshow(take(91), free_mib())\n", where)
    assert holder.line() == "70"
    for maker in makers:
        end_program(maker, "killed")
    holder.go_on()
    assert holder.rest() == ["2 90"]


def test_a_handle_opened_twice_is_closed_twice(start: Start) -> None:
    maker = start(IPC_MAKER + "wait()\n")
    where = maker.line()
    holder = start(
        IPC_HOLDER
        + "again = c_uint64()\nok(cuda.cuIpcOpenMemHandle_v2(byref(again), handle, 1))\nclose()\n"
        + "show(free_mib())\nwait()\nshow(free_mib())\n"
        + "ok(cuda.cuIpcCloseMemHandle(again))\nshow(take(100))\n",
        where,
    )
    assert holder.line() == "40"
    end_program(maker, "killed")
    holder.go_on()
    assert holder.rest() == ["40", "0"]
