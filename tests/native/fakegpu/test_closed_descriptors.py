"""The stand-in driver under programs that close every descriptor, as daemons do.

It must do nothing to what the program opens at a number that was the driver's.
"""

import os
from pathlib import Path

import pytest

from tests.native.driver_program import Program
from tests.native.machine import MIB, Container, Machine, is_locked, open_context

CLOSING = """
import os, sys


def closed():
    os.closerange(3, 256)
    return [os.open(sys.argv[1], os.O_RDWR) for _ in range(32)]


def kept(files):
    wanted = os.stat(sys.argv[1]).st_ino
    return sum(os.fstat(file).st_ino == wanted for file in files)
"""


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    file = tmp_path / "theirs"
    file.write_bytes(b"x")
    return file


def test_a_fork_child_keeps_the_programs_files(machine: Machine, theirs: Path) -> None:
    program = Program(
        machine,
        CLOSING
        + """
files = closed()
if os.fork() == 0:
    alloc(4096)
    show(kept(files))
    os._exit(0)
os.wait()
""",
        str(theirs),
    )
    assert program.rest() == ["32"]


def test_no_file_of_the_program_is_locked(machine: Machine, theirs: Path) -> None:
    # The first call of a child takes a lock in the file of pids, whose number is the program's now.
    program = Program(
        machine,
        CLOSING
        + """
files = closed()
if os.fork() == 0:
    alloc(4096)
    show("child")
    sys.stdin.readline()
    os._exit(0)
os.wait()
""",
        str(theirs),
    )
    assert program.line() == "child"
    locked = is_locked(theirs)
    program.go_on()
    assert (program.rest(), locked) == ([], False)


def test_freeing_shared_memory_closes_no_file_of_the_program(
    machine: Machine, theirs: Path
) -> None:
    program = Program(
        machine,
        CLOSING
        + """
shared = alloc(1 << 20)
handle = (ctypes.c_char * 64)()
ok(cuda.cuIpcGetMemHandle(handle, shared))
files = closed()
ok(cuda.cuMemFree_v2(shared))
show(kept(files))
""",
        str(theirs),
    )
    assert program.rest() == ["32"]


def test_what_has_the_number_of_a_shared_block_is_not_mapped(
    machine: Machine, theirs: Path
) -> None:
    os.truncate(theirs, 2 * MIB)
    maker = Program(
        machine,
        CLOSING
        + """
shared = alloc(1 << 20)
handle = (ctypes.c_char * 64)()
ok(cuda.cuIpcGetMemHandle(handle, shared))
files = closed()
show(handle.raw.hex())
sys.stdin.readline()
""",
        str(theirs),
    )
    handle = maker.line()
    opener = Program(
        machine,
        """
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


pointer = c_uint64()
handle = Handle.from_buffer_copy(bytes.fromhex(sys.argv[1]))
show(cuda.cuIpcOpenMemHandle_v2(byref(pointer), handle, 1))
""",
        handle,
    )
    assert opener.rest() == ["205"]  # CUDA_ERROR_MAP_FAILED
    maker.go_on()
    assert maker.rest() == []


APART = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def test_who_closes_everything_in_a_pid_namespace_of_its_own_keeps_its_memory(
    machine: Machine, container: Container
) -> None:
    # Seen from another namespace a process lives as long as its lock, which a descriptor kept.
    container.limit(10 * MIB)
    apart = open_context(machine.start(container.env(), APART))
    assert apart.alloc(4 * MIB)[0] == 0
    apart.call("close_descriptors", path=None)
    other = open_context(machine.start(machine.env()))  # its first call looks for the dead
    assert other.alloc(MIB)[0] == 0
    assert machine.used_bytes() == 5 * MIB
    other.kill()
    apart.kill()
    assert open_context(machine.start(machine.env())).alloc(MIB)[0] == 0
    assert machine.used_bytes() == MIB
