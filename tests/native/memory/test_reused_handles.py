"""Handles that a driver hands out again, and memory at each type of place."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.driver_program import Program
from tests.native.machine import CARDS, MIB, ROOT, Container, Machine

ABI = ROOT / "native/libvgpu/include"
# One context, one pool, and addresses that begin again with each. While one is being destroyed the
# program continues, as another thread would.
DRIVER = """
#include <string.h>
#include "cuda_abi.h"
#define ANSWER(name, ...) int name(__VA_ARGS__)
void (*in_between)(void);
static unsigned long long next = 1 << 21, kept;
static void go_on(void)
{
    void (*now)(void) = in_between;
    in_between = 0;
    if (REUSE_ADDRESSES) next = 1 << 21;
    if (now) now();
}
static int give(unsigned long long *p, unsigned long n)
{
    return *p = next, next += n, 0;
}
ANSWER(cuInit, unsigned f) { return 0; }
ANSWER(cuDeviceGetCount, int *n) { return *n = 1, 0; }
ANSWER(cuDeviceGet, int *d, int i) { return *d = i, 0; }
ANSWER(cuDeviceGetUuid_v2, char *u, int d) { return memset(u, 7, 16), 0; }
ANSWER(cuCtxCreate_v2, void **c, unsigned f, int d) { return *c = (void *)64, 0; }
ANSWER(cuCtxDestroy_v2, void *c) { return go_on(), 0; }
ANSWER(cuCtxGetCurrent, void **c) { return *c = (void *)64, 0; }
ANSWER(cuCtxGetDevice, int *d) { return *d = 0, 0; }
ANSWER(cuMemAlloc_v2, unsigned long long *p, unsigned long n) { return give(p, n); }
ANSWER(cuMemFree_v2, unsigned long long p) { return 0; }
ANSWER(cuMemGetInfo_v2, unsigned long *f, unsigned long *t) { return *f = *t = 1UL << 30, 0; }
ANSWER(cuEventCreate, void **e, unsigned f) { return *e = (void *)160, 0; }
ANSWER(cuEventRecord, void *e, void *s) { return 0; }
ANSWER(cuEventQuery, void *e) { return 0; }
ANSWER(cuEventSynchronize, void *e) { return 0; }
ANSWER(cuStreamIsCapturing, void *s, int *status) { return *status = 0, 0; }
ANSWER(cuDeviceGetDefaultMemPool, void **p, int d) { return *p = (void *)96, 0; }
ANSWER(cuMemPoolCreate, void **p, void *props) { return *p = (void *)128, 0; }
ANSWER(cuMemPoolDestroy, void *p) { return go_on(), 0; }
ANSWER(cuMemPoolSetAttribute, void *p, int a, void *v) { return 0; }
ANSWER(cuMemPoolGetAttribute, void *p, int a, unsigned long long *v) { return *v = 10 << 20, 0; }
ANSWER(cuMemPoolTrimTo, void *p, unsigned long keep) { return 0; }
ANSWER(cuMemAllocFromPoolAsync, unsigned long long *p, unsigned long n, void *pool, void *s)
{
    return give(p, n);
}
ANSWER(cuMemFreeAsync, unsigned long long p, void *s) { return 0; }
"""
PROLOGUE = """
#include <dlfcn.h>
#include <stdio.h>
#include "cuda_abi.h"
#define MIB (1UL << 20)
#define CALL(name, ...) (((int (*)())dlsym(driver, #name))(__VA_ARGS__))
static void *driver;
static void (**in_between)(void);
static CUdeviceptr block;
static void print_free(void)
{
    size_t free_bytes, total;
    CALL(cuMemGetInfo_v2, &free_bytes, &total);
    printf("%zu ", free_bytes / MIB);
}
static void begin(void)
{
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    in_between = dlsym(driver, "in_between");
    CALL(cuInit, 0);
}
"""
CONTEXTS = (
    PROLOGUE
    + """
static CUcontext context;
static void again(void)
{
    CALL(cuCtxCreate_v2, &context, 0, 0);
    CALL(cuMemAlloc_v2, &block, 10 * MIB);
}
int main(void)
{
    begin();
    again();
    *in_between = again;
    CALL(cuCtxDestroy_v2, context);
    print_free();
    printf("%d ", CALL(cuMemAlloc_v2, &block, 11 * MIB));
    CALL(cuCtxDestroy_v2, context);
    print_free();
    return 0;
}
"""
)
POOLS = (
    PROLOGUE
    + """
static CUmemoryPool pool;
static void again(void)
{
    CUmemPoolProps wanted = {.allocType = 1, .location = {.type = 1}};
    cuuint64_t all = ~0ULL;
    CALL(cuMemPoolCreate, &pool, &wanted);
    CALL(cuMemPoolSetAttribute, pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all);
    CALL(cuMemAllocFromPoolAsync, &block, 10 * MIB, pool, NULL);
    CALL(cuMemFreeAsync, block, NULL);
}
int main(void)
{
    begin();
    again();
    *in_between = again;
    CALL(cuMemPoolDestroy, pool);
    print_free();
    printf("%d ", CALL(cuMemAllocFromPoolAsync, &block, 21 * MIB, pool, NULL));
    CALL(cuMemPoolDestroy, pool);
    print_free();
    return 0;
}
"""
)


@pytest.mark.parametrize("reuse_addresses", [0, 1])
@pytest.mark.parametrize("program", [CONTEXTS, POOLS], ids=["contexts", "pools"])
def test_what_was_made_before_the_end_returns_stays_charged(
    container: Container,
    compile_c: Callable[..., Path],
    tmp_path: Path,
    program: str,
    reuse_addresses: int,
) -> None:
    container.limits(
        "hami-limits 1\ndevice GPU-07070707-0707-0707-0707-070707070707"
        f" memory_bytes {20 * MIB} core_percent 0\n"
    )
    (tmp_path / "driver").mkdir()
    options = ("-w", f"-I{ABI}")
    compile_c(
        DRIVER,
        *options,
        f"-DREUSE_ADDRESSES={reuse_addresses}",
        "-shared",
        "-fPIC",
        name="driver/libcuda.so.1",
    )
    done = subprocess.run(
        [compile_c(program, *options, "-ldl")],
        env=container.env(LD_LIBRARY_PATH=str(tmp_path / "driver")),
        capture_output=True,
        text=True,
        timeout=60,
    )
    # Free beside the new one's ten; more is refused; all free after its end.
    assert (done.returncode, done.stdout.split()) == (0, ["10", "2", "20"]), done


LIMIT, OTHER_LIMIT = 4 * MIB, 8 * MIB
PINNED, MANAGED = 1, 2
DEVICE, HOST, HOST_NUMA, HOST_NUMA_CURRENT, INVISIBLE, DOMAIN, UNKNOWN = 1, 2, 3, 4, 5, 6, 99
NO_PLACE = 0
TAKE = """
allocation_type, place, number = map(int, sys.argv[1:4])


def pool_of():
    return (ctypes.c_int * 22)(allocation_type, 0, place, number)


def physical(size):
    handle = c_uint64()
    properties = (ctypes.c_int * 8)(allocation_type, 0, place, number)
    return cuda.cuMemCreate(byref(handle), c_size_t(size), properties, c_uint64(0))


def from_pool(size):
    pool, made = c_void_p(), c_uint64()
    ok(cuda.cuMemPoolCreate(byref(pool), pool_of()))
    return cuda.cuMemAllocFromPoolAsync(byref(made), c_size_t(size), pool, None)


class Node(ctypes.Structure):
    _fields_ = [
        ("pool", ctypes.c_int * 22),
        ("access", c_void_p),
        ("access_count", c_size_t),
        ("size", c_size_t),
        ("pointer", c_uint64),
    ]


def graph_node(size):
    graph, made, run, node = c_void_p(), c_void_p(), c_void_p(), Node(pool_of(), size=size)
    ok(cuda.cuGraphCreate(byref(graph), 0))
    ok(cuda.cuGraphAddMemAllocNode(byref(made), graph, None, c_size_t(0), byref(node)))
    ok(cuda.cuGraphInstantiateWithFlags(byref(run), graph, c_uint64(0)))
    return cuda.cuGraphLaunch(run, None)


def free_mib():
    free, total = c_size_t(), c_size_t()
    ok(cuda.cuMemGetInfo_v2(byref(free), byref(total)))
    return free.value >> 20
"""


def limit_both(container: Container) -> None:
    lines = [
        f"device {card} memory_bytes {size} core_percent 0\n"
        for card, size in zip(CARDS, (LIMIT, OTHER_LIMIT), strict=True)
    ]
    container.limits("hami-limits 1\n" + "".join(lines))


def take(
    container: Container,
    maker: str,
    place: tuple[int, int],
    kind: int = PINNED,
    sizes: str = "4, 2",
) -> list[list[int]]:
    """Return, for each size, the result and the free memory of the first card's 4 MiB."""
    limit_both(container)
    container.machine.settings["future_location"] = place[0]
    container.machine.write()
    body = f"for size in ({sizes}):\n    show({maker}(size << 20), free_mib())\n"
    arguments = map(str, (kind, *place))
    program = Program(container.machine, TAKE + body, *arguments, env=container.env())
    return [[int(each) for each in line.split()] for line in program.rest()]


GIVEN, REFUSED, UNTOUCHED = [0, 0], [2, 0], [0, 4]
MAKERS = ["physical", "from_pool", "graph_node"]


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize(
    "place", [(DEVICE, 0), (DOMAIN, 0), (DOMAIN, 1 << 8), (INVISIBLE, -2), (UNKNOWN, 0)]
)
def test_a_place_that_is_not_known_to_be_the_hosts_is_held_to_the_slice(
    container: Container, machine: Machine, maker: str, place: tuple[int, int]
) -> None:
    assert take(container, maker, place) == [GIVEN, REFUSED]
    assert machine.peak() <= LIMIT


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("place", [(DEVICE, 1), (DOMAIN, 1), (DOMAIN, 1 << 8 | 1)])
def test_the_device_that_the_place_names_is_charged(
    container: Container, machine: Machine, maker: str, place: tuple[int, int]
) -> None:
    taken = take(container, maker, place, sizes="4, 4, 2")
    assert taken == [UNTOUCHED, UNTOUCHED, [2, 4]]
    assert machine.peak(1) == OTHER_LIMIT
    assert machine.peak(0) == 0


@pytest.mark.parametrize("maker", ["physical", "from_pool"])
@pytest.mark.parametrize("place", [HOST, HOST_NUMA, HOST_NUMA_CURRENT])
def test_a_place_of_the_host_is_free(
    container: Container, machine: Machine, maker: str, place: int
) -> None:
    assert take(container, maker, (place, 0)) == [UNTOUCHED, UNTOUCHED]
    assert machine.peak() == 0


@pytest.mark.parametrize("place", [NO_PLACE, HOST, HOST_NUMA, HOST_NUMA_CURRENT, DEVICE])
def test_a_pool_of_managed_memory_is_held_to_the_slice_wherever_it_prefers_to_be(
    container: Container, machine: Machine, place: int
) -> None:
    assert take(container, "from_pool", (place, 0), MANAGED) == [GIVEN, REFUSED]
    assert machine.peak() <= LIMIT


def test_a_place_that_is_not_known_needs_no_context_to_be_charged(
    container: Container, machine: Machine
) -> None:
    limit_both(container)
    machine.settings["future_location"] = UNKNOWN
    machine.write()
    client = container.start()
    assert client.call("init") == {"result": 0}
    assert client.call("create", bytes=4 * MIB, place=UNKNOWN, ordinal=0)["result"] == 0
    assert client.call("create", bytes=2 * MIB, place=UNKNOWN, ordinal=0)["result"] == 2
    assert machine.peak() == LIMIT


POOL_OF_A_DOMAIN = """
def default_pool(device, domain):
    pool, place = c_void_p(), (ctypes.c_int * 2)(6, domain << 8 | device)
    ok(cuda.cuMemGetDefaultMemPool(byref(pool), place, 1))
    return pool


made, pool = c_uint64(), default_pool(1, 1)
for size in (6, 4):
    show(cuda.cuMemAllocFromPoolAsync(byref(made), c_size_t(size << 20), pool, None))
"""


def test_the_pool_of_a_locality_domain_is_charged_to_its_device_whichever_is_current(
    container: Container, machine: Machine
) -> None:
    limit_both(container)
    program = Program(machine, POOL_OF_A_DOMAIN, env=container.env())
    assert program.rest() == ["0", "2"]
    assert machine.peak(1) == 6 * MIB


BOTH_WAYS = """
found, name, bind = c_void_p(), b"cuMulticastBindMem", {}
for version in (12010, 13010):
    ok(cuda.cuGetProcAddress_v2(name, byref(found), version, c_uint64(0), None))
    bind[version] = ctypes.CFUNCTYPE(ctypes.c_int)(found.value)


def bound(size, version):
    handle, group = c_uint64(), c_uint64()
    properties = (ctypes.c_int * 8)(1, 0, 1, 0)
    result = cuda.cuMemCreate(byref(handle), c_size_t(size), properties, c_uint64(0))
    if result:
        return result
    ok(cuda.cuMulticastCreate(byref(group), (c_uint64 * 4)(1, size)))
    zero = c_size_t(0)
    device = [0] if version == 13010 else []
    ok(bind[version](group, *device, zero, handle, zero, c_size_t(size), c_uint64(0)))
    ok(cuda.cuMemRelease(handle))
    return 0


show(bound(2 << 20, 13010), bound(2 << 20, 12010), bound(2 << 20, 13010), bound(2 << 20, 12010))
"""


def test_memory_bound_to_a_multicast_object_stays_charged_by_either_version_of_the_request(
    container: Container, machine: Machine
) -> None:
    container.limit(LIMIT)
    machine.settings["cuda_version"] = 13050
    machine.write()
    assert Program(machine, BOTH_WAYS, env=container.env()).rest() == ["0 0 2 2"]
    assert machine.peak() == LIMIT
