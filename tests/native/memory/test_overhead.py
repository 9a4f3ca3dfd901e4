"""The driver's own memory (contexts, modules) is charged if NVML shows it."""

import struct
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.native.allocators.context_makers import KINDS as CONTEXTS
from tests.native.allocators.context_makers import OUTLIVED
from tests.native.driver_program import Program
from tests.native.fakegpu.green_program import GREEN
from tests.native.machine import MIB, Client, Container, Machine
from tests.waiting import wait

CONTEXT, MODULE = 64 * MIB, 2 * MIB
LIMIT = 100 * MIB


@pytest.fixture
def costly(machine: Machine, container: Container) -> Container:
    machine.settings |= {"context_mib": CONTEXT // MIB, "module_kib": MODULE // 1024}
    machine.write()
    container.limit(LIMIT)
    return container


def open_context(container: Container, prefix: Sequence[str] = ()) -> Client:
    client = container.machine.start(container.env(), prefix)
    assert client.call("open_device") == {"result": 0}
    return client


def context_bytes(container: Container) -> int:
    """Return the context bytes of the region's first slot, as a monitor reads them."""
    return int(struct.unpack_from("<Q", container.region.read_bytes(), 1856 + 8)[0])


def test_starting_makes_no_context(machine: Machine, costly: Container) -> None:
    # Others find out their own pid by making one: 0.3 s per process, and memory of the card.
    client = costly.start()
    assert client.call("init") == {"result": 0}
    assert client.call("total_mem") == {"result": 0, "total": LIMIT}
    assert client.nvml("nvmlDeviceGetMemoryInfo", 0)["total"] == LIMIT
    assert machine.used_bytes() == 0


def test_a_context_is_charged_from_its_beginning_to_its_end(costly: Container) -> None:
    client = open_context(costly)
    assert client.info() == (LIMIT - CONTEXT, LIMIT)
    assert context_bytes(costly) == CONTEXT
    assert client.alloc(LIMIT - CONTEXT)[0] == 0
    assert client.alloc(1)[0] == 2
    assert client.call("destroy_context") == {"result": 0}
    assert context_bytes(costly) == 0
    assert open_context(costly).info() == (LIMIT - CONTEXT, LIMIT)


@pytest.mark.parametrize("how", CONTEXTS)
def test_every_way_of_making_a_context_is_charged_until_it_ends(
    machine: Machine, costly: Container, how: str
) -> None:
    costly.limit(4 * LIMIT)
    client = open_context(costly)
    left = 4 * LIMIT - CONTEXT
    assert client.call("further_context", how=how, bytes=MIB) == {
        "result": 0,
        "made": left - CONTEXT,
        "held": left - CONTEXT - MIB,
        "left": left - MIB if how in OUTLIVED else left,
        "ended": left,
    }
    assert machine.used_bytes() == CONTEXT


@pytest.mark.parametrize("ends_first", ["green", "primary"])
def test_blocks_of_a_green_context_end_with_the_primary_one(
    machine: Machine, costly: Container, ends_first: str
) -> None:
    costly.limit(4 * LIMIT)
    ends = ["cuda.cuGreenCtxDestroy(green)", "cuda.cuDevicePrimaryCtxRelease_v2(0)"]
    if ends_first == "primary":
        ends.reverse()
    program = Program(
        machine,
        GREEN
        + f"""
group, further = (Resource * 1)(), c_void_p()
split(group, 1, 26)
green, made = c_void_p(), c_void_p()
ok(cuda.cuGreenCtxCreate(byref(green), described(group[0])[1], 0, 1))
ok(cuda.cuCtxFromGreenCtx(byref(made), green))
ok(cuda.cuCtxPushCurrent_v2(made))
alloc(20 << 20)
ok(cuda.cuCtxCreate_v2(byref(further), 0, 0))


def free_mib():
    free, total = c_size_t(), c_size_t()
    ok(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return free.value >> 20


show(free_mib())
ok({ends[0]})
show(free_mib())
ok({ends[1]})
show(free_mib())
""",
        env=costly.env(),
    )
    # 400 MiB, three contexts of 64 and the block; the green one holds on to the primary one.
    between = "252" if ends_first == "green" else "188"
    assert program.rest() == ["188", between, "336"]


def test_retaining_a_context_again_costs_nothing(costly: Container) -> None:
    client = open_context(costly)
    assert client.call("open_device") == {"result": 0}
    assert client.info() == (LIMIT - CONTEXT, LIMIT)
    assert client.call("destroy_context") == {"result": 0}
    assert client.info() == (LIMIT - CONTEXT, LIMIT)


def test_each_process_pays_for_its_own_context(costly: Container) -> None:
    first = open_context(costly)
    second = open_context(costly)
    # Two contexts are more than the slice; the card has them, so nothing else fits.
    assert first.info() == (0, LIMIT)
    assert second.alloc(1)[0] == 2
    second.kill()
    assert first.alloc(LIMIT - CONTEXT)[0] == 0


def test_modules_are_charged_with_the_next_allocation_at_the_latest(costly: Container) -> None:
    client = open_context(costly)
    assert client.call("launch", kernels=1) == {"result": 0}

    def is_charged() -> bool:
        result, pointer = client.alloc(512)
        assert result == 0
        assert client.free(pointer) == 0
        return client.info()[0] == LIMIT - CONTEXT - MODULE

    wait(is_charged, "the module to be charged", why=lambda: str(client.info()))


LAZY = """
functions = [kernel(b"lazy%d" % number) for number in range(3)]


def launch_all():
    for function in functions:
        ok(cuda.cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, None, None))
    ok(cuda.cuStreamSynchronize(stream))


def free_mib():
    free, total = c_size_t(), c_size_t()
    ok(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return free.value >> 20


def fill(step):
    taken = 0
    while cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(step)) == 0:
        taken += step
    return taken
"""


@pytest.fixture
def lazy(costly: Container) -> Container:
    costly.machine.settings["lazy_code_kib"] = 5 << 10
    costly.machine.write()
    return costly


def test_code_that_is_loaded_at_the_first_launch_is_charged_while_the_program_allocates(
    lazy: Container,
) -> None:
    """Nothing is loaded any more by then, which would be a reason to look."""
    left = (LIMIT - CONTEXT - 3 * MODULE) // MIB
    program = Program(
        lazy.machine,
        LAZY
        + f"""
def use_up_reasons():
    ok(cuda.cuMemFree_v2(alloc(512)))
    return free_mib()


while use_up_reasons() != {left}:
    pass
launch_all()
while use_up_reasons() != {left - 15}:
    pass
show(fill(1 << 20) >> 20)
""",
        env=lazy.env(),
    )
    assert program.rest() == [str(left - 15)]
    assert lazy.machine.peak() <= LIMIT


def test_code_that_was_just_loaded_is_charged_before_a_slice_is_filled(lazy: Container) -> None:
    program = Program(lazy.machine, LAZY + "launch_all()\nfill(512)\n", env=lazy.env())
    assert program.rest() == []
    assert LIMIT - MIB <= lazy.machine.peak() <= LIMIT


def test_nvml_is_initialised_once_for_all_looks(costly: Container) -> None:
    costly.machine.settings["faults"] = [
        {"call": "nvmlInit", "result": 999, "after": 1, "times": 0}
    ]
    costly.machine.write()
    client = open_context(costly)
    assert client.info() == (LIMIT - CONTEXT, LIMIT)
    for modules in (1, 2, 3):
        assert client.call("launch", kernels=1) == {"result": 0}
        assert client.info() == (LIMIT - CONTEXT - modules * MODULE, LIMIT)


def test_a_program_that_shuts_nvml_down_too_often_hides_nothing(costly: Container) -> None:
    program = Program(
        costly.machine,
        LAZY
        + """
nvml = ctypes.CDLL("libnvidia-ml.so.1")
for _ in range(3):
    nvml.nvmlShutdown()
before = free_mib()
kernel()
show(before - free_mib())
""",
        env=costly.env(),
    )
    assert program.rest() == [str(MODULE // MIB)]


def test_where_nvml_shows_other_pids_blocks_alone_are_charged(
    machine: Machine, costly: Container
) -> None:
    machine.settings["pid_offset"] = 100_000
    machine.write()
    client = open_context(costly)
    assert client.info() == (LIMIT, LIMIT)
    assert client.alloc(LIMIT)[0] == 0


APART = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
"""Command that gives a process its own pid namespace, as container runtimes do."""


@pytest.fixture
def own_pids() -> tuple[str, ...]:
    """The command that starts a program in its own pid namespace."""
    tried = subprocess.run([*APART, "true"], capture_output=True, text=True, timeout=30)
    if tried.returncode != 0:
        pytest.skip(f"this machine refuses a pid namespace: {tried.stderr.strip()}")
    return APART


@pytest.mark.parametrize("pids_file", [False, True])
@pytest.mark.parametrize("shown", ["own pids", "host pids"])
def test_contexts_are_charged_in_a_pid_namespace_of_ones_own(
    machine: Machine, costly: Container, own_pids: tuple[str, ...], shown: str, pids_file: bool
) -> None:
    # Recent drivers list the pids of the caller's namespace, older ones the host's.
    machine.settings |= {"context_mib": 300, "pid_offset": 0 if shown == "own pids" else 100_000}
    machine.write()
    costly.limit(1000 * MIB)
    if pids_file:
        # The program is the first one of its namespace.
        (costly.folder / "hami/pids").write_text("1 100001\n7 100007\n")
    client = open_context(costly, own_pids)
    assert client.call("further_contexts", count=1) == {"result": 0}
    free = client.info()[0]
    known = shown == "own pids" or pids_file
    assert free == (400 * MIB if known else 1000 * MIB)
    if known:
        assert client.alloc(free)[0] == 0
        assert client.alloc(1)[0] == 2
        assert machine.used_bytes() == 1000 * MIB


def test_a_pid_that_the_node_writes_later_is_charged_with_the_next_allocations(
    machine: Machine, costly: Container, own_pids: tuple[str, ...]
) -> None:
    machine.settings["pid_offset"] = 100_000
    machine.write()
    client = open_context(costly, own_pids)
    assert client.info() == (LIMIT, LIMIT)
    (costly.folder / "hami/pids").write_text("1 100001\n")
    deadline = time.monotonic() + 60
    while client.info()[0] != LIMIT - CONTEXT:
        assert time.monotonic() < deadline, client.info()
        result, pointer = client.alloc(512)
        assert result == 0
        assert client.free(pointer) == 0


def test_a_line_of_another_container_with_the_same_pid_is_not_taken_for_ones_own(
    machine: Machine, costly: Container, own_pids: tuple[str, ...]
) -> None:
    """Both have the slice together, by a claim; the start time keeps them apart."""
    machine.settings["pid_offset"] = 100_000
    machine.write()
    costly.limit(4 * LIMIT)
    client = open_context(costly, own_pids)
    [process] = children(client.pid)
    started = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    pids = costly.folder / "hami/pids"
    pids.write_text(f"1 100001 {started - 1}\n")
    assert client.call("further_contexts", count=1) == {"result": 0}
    assert client.info()[0] == 4 * LIMIT
    pids.write_text(f"1 100001 {started}\n1 100002 {started - 1}\n")
    assert client.call("further_contexts", count=1) == {"result": 0}
    assert client.info()[0] == 4 * LIMIT - 3 * CONTEXT


def test_a_host_pid_that_the_tenant_wrote_into_the_region_hides_nothing(
    costly: Container, own_pids: tuple[str, ...]
) -> None:
    costly.limit(4 * LIMIT)
    client = open_context(costly, own_pids)
    with costly.region.open("r+b") as region:
        region.seek(1856 + 4)
        region.write(struct.pack("<i", 4711))
    assert client.call("further_contexts", count=1) == {"result": 0}
    assert client.info()[0] == 4 * LIMIT - 2 * CONTEXT


def test_the_node_sees_the_processes_of_containers_by_its_own_pids(
    machine: Machine, costly: Container, own_pids: tuple[str, ...]
) -> None:
    first, second = open_context(costly, own_pids), open_context(costly, own_pids)
    node = machine.start(machine.env())
    inside = {pid for one in (first, second) for pid in children(one.pid)}
    assert pids_that_nvml_lists(node) == inside
    assert pids_that_nvml_lists(first) == {1}


def pids_that_nvml_lists(client: Client) -> set[int]:
    listed = client.nvml("nvmlDeviceGetComputeRunningProcesses", 0)
    return {one["pid"] for one in listed}


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
