"""Memory at each type of place (CUmemLocationType): only what is known to be the host's is free.

A place that no driver has yet is the stand-in's `future_location`: memory of the current device.
"""

import pytest

from tests.native.driver_program import Program
from tests.native.machine import CARDS, MIB, Container, Machine

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
    """The result and what is free of the first card's 4 MiB, for each size that is taken."""
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
