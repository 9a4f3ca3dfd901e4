"""A container whose tenant tries everything at random, beside one that works: by a seed.

Whatever is done to the variables, mounts, the region, the processes and their calls, no process of
it gets more than its slice, none is ended by the library, and the other container notices nothing.
"""

import random

import pytest

from tests.native.hostile.hostile_tenant import OUT_OF_MEMORY, Tenant
from tests.native.machine import MIB, Container, Machine, opened

LIMIT, NEIGHBOUR, HELD = 32 * MIB, 64 * MIB, 40 * MIB
THEIRS = b"no region of anybody's\n" * 1000


@pytest.fixture
def tenant(machine: Machine, pytestconfig: pytest.Config) -> Tenant:
    seed = str(pytestconfig.getoption("--seed", default="") or "1")
    place = machine.folder / "vgpu/region.cache"
    place.parent.mkdir()
    container = Container(machine, machine.folder, place)
    container.limit(LIMIT)
    tenant = Tenant(container, LIMIT, random.Random(seed))
    tenant.theirs.write_bytes(THEIRS)
    return tenant


@pytest.mark.parametrize(
    "attempts", [30, pytest.param(500, marks=pytest.mark.slow)], ids=["30", "500"]
)
def test_whatever_a_tenant_does_his_programs_keep_to_the_slice_and_nobody_else_notices(
    machine: Machine, tenant: Tenant, attempts: int
) -> None:
    (machine.folder / "neighbour").mkdir()
    neighbour = Container(machine, machine.folder / "neighbour")
    neighbour.limit(NEIGHBOUR)
    worker = opened(neighbour.start())
    assert worker.alloc(HELD)[0] == 0
    done: list[str] = []

    for _ in range(attempts):
        way = tenant.chance.choice(tenant.ways)
        done.append(way.__name__)
        way()
        so_far = f"attempt {len(done)}: {' '.join(done[-8:])}"
        assert worker.info() == (NEIGHBOUR - HELD, NEIGHBOUR), so_far
        result, pointer = worker.alloc(NEIGHBOUR - HELD)
        assert (result, worker.free(pointer)) == (0, 0), so_far
        assert worker.alloc(NEIGHBOUR - HELD + 1)[0] == OUT_OF_MEMORY, so_far
        # A region that is taken away gives each process a slice, never more.
        most = len(tenant.programs) * LIMIT
        assert machine.used() - HELD <= most, so_far
        assert [one.process.poll() for one in tenant.programs] == [None] * len(tenant.programs)
        assert tenant.theirs.read_bytes() == THEIRS, so_far
        assert not (tenant.container.folder / "nowhere").exists(), so_far

    tenant.go_on()
    for one in tenant.programs:
        tenant.within_slice(one)
    # A new container's worth of files, and all is as at the beginning.
    for one in list(tenant.programs):
        tenant.end(one)
    tenant.delete()
    first, second = opened(tenant.container.start()), opened(tenant.container.start())
    assert first.alloc(LIMIT)[0] == 0
    assert second.alloc(1)[0] == OUT_OF_MEMORY
    assert machine.used() == HELD + LIMIT
    assert worker.close() == 0
