"""A container whose tenant tries everything at random, beside one that works: by a seed.

Whatever is done to the variables, the region, the processes and their calls, no process of it gets
more than its slice, none is ended by the library, and the other container notices nothing.
"""

import contextlib
import fcntl
import os
import random
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.native.allocators import KINDS
from tests.native.machine import MIB, Client, Container, Machine, opened

LIMIT, NEIGHBOUR, HELD = 32 * MIB, 64 * MIB, 40 * MIB
OUT_OF_MEMORY = 2
MOST = 3
"""Processes of the tenant at a time: starting one is what costs."""
VARIABLES = [
    "CUDA_DEVICE_MEMORY_LIMIT",
    "CUDA_DEVICE_MEMORY_LIMIT_0",
    "CUDA_DEVICE_SM_LIMIT",
    "CUDA_DEVICE_MEMORY_SHARED_CACHE",
    "CUDA_OVERSUBSCRIBE",
    "CUDA_DISABLE_CONTROL",
    "CUDA_TASK_PRIORITY",
    "CUDA_VISIBLE_DEVICES",
    "GPU_CORE_UTILIZATION_POLICY",
    "RECORD_KERNEL_INTERVAL",
    "NVIDIA_VISIBLE_DEVICES",
]
VALUES = [
    "",
    "0",
    "1",
    "-1",
    "80g",
    "true",
    "disable",
    "force",
    "/dev/null",
    "/",
    "x" * 5000,
    "\x7f",
]


@dataclass
class Tenant:
    """The programs of the hostile container, and what has been done to them."""

    container: Container
    chance: random.Random
    programs: list[Client] = field(default_factory=list)
    stopped: set[int] = field(default_factory=set)
    closed: set[int] = field(default_factory=set)

    def awake(self) -> Client | None:
        """One that answers."""
        free = [one for one in self.programs if one.pid not in self.stopped]
        return self.chance.choice(free) if free else None

    def start(self) -> None:
        """A program with random variables; the oldest ends where there are enough."""
        if len(self.programs) >= MOST:
            self.end(self.programs[0])
        chosen = self.chance.sample(VARIABLES, self.chance.randrange(5))
        env = {name: self.chance.choice(VALUES) for name in chosen}
        env["CUDA_VISIBLE_DEVICES"] = self.chance.choice(["0", "0,1"])
        self.programs.append(opened(self.container.start(**env)))

    def end(self, one: Client) -> None:
        self.programs.remove(one)
        self.stopped.discard(one.pid)
        one.kill()

    @property
    def has_region(self) -> bool:
        """A file of the container's own: what a link names is nobody's to write to."""
        region = self.container.region
        return region.is_file() and not region.is_symlink()

    # What is done to the region.
    def delete(self) -> None:
        region = self.container.region
        if region.is_dir() and not region.is_symlink():
            shutil.rmtree(region)
        else:
            region.unlink(missing_ok=True)

    def write(self) -> None:
        """Zeroes or noise somewhere, or everywhere."""
        if not self.has_region:
            return
        with self.container.region.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            at = self.chance.choice([0, 24, 1600, 1856, 3040, self.chance.randrange(size + 1)])
            length = self.chance.choice([1, 8, 64, 4096])
            filler = self.chance.choice([bytes(length), b"\xff" * length, os.urandom(length)])
            file.seek(at)
            file.write(filler[: max(size - at, 0)])

    def zero(self) -> None:
        if self.has_region:
            with self.container.region.open("r+b") as file:
                file.write(bytes(os.fstat(file.fileno()).st_size))

    def lengthen(self) -> None:
        if self.has_region:
            os.truncate(self.container.region, self.chance.choice([1 << 24, 1 << 30]))

    def replace(self) -> None:
        """By something that is no region."""
        self.delete()
        region = self.container.region
        self.chance.choice(
            [
                region.mkdir,
                region.touch,
                lambda: os.mkfifo(region),
                lambda: region.symlink_to(region.with_name("machine.json")),
                lambda: region.symlink_to(region.name),
                lambda: region.write_bytes(os.urandom(10_000)),
            ]
        )()

    def forbid(self) -> None:
        if self.has_region:
            self.container.region.chmod(self.chance.choice([0, 0o444, 0o666]))

    def lock(self) -> None:
        """Held while a program allocates: one that is only killed would drop it."""
        one = self.awake()
        if one is None or not self.has_region:
            return
        with self.container.region.open("r+b") as file:
            with contextlib.suppress(OSError):
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
            self.within_slice(one)

    # What the programs do.
    def take(self) -> None:
        if one := self.awake():
            kind, size = self.chance.choice(list(KINDS)), self.chance.randrange(1, LIMIT // MIB + 2)
            one.call("take", kind=kind, bytes=size * MIB)

    def fork(self) -> None:
        one = self.awake()
        # The stand-in driver closes its file in a child by a number that may be another file's now.
        if one is not None and one.pid not in self.closed:
            one.call("fork_and_alloc", bytes=self.chance.randrange(1, LIMIT))

    def close_files(self) -> None:
        if one := self.awake():
            self.closed.add(one.pid)
            one.call("close_descriptors", path=None)

    def churn(self) -> None:
        if one := self.awake():
            one.call("churn", bytes=self.chance.randrange(100_000, LIMIT), rounds=2)

    def within_slice(self, one: Client) -> None:
        """It sees its slice, and is refused what is more."""
        free, total = one.info()
        assert (free <= total, total <= LIMIT) == (True, True), (free, total)
        assert one.alloc(LIMIT + 1)[0] == OUT_OF_MEMORY

    def look(self) -> None:
        if one := self.awake():
            self.within_slice(one)

    # What is done to the programs.
    def kill(self) -> None:
        if self.programs:
            self.end(self.chance.choice(self.programs))

    def stop(self) -> None:
        if one := self.awake():
            one.process.send_signal(signal.SIGSTOP)
            self.stopped.add(one.pid)

    def go_on(self) -> None:
        for one in self.programs:
            one.process.send_signal(signal.SIGCONT)
        self.stopped.clear()

    @property
    def ways(self) -> list[Callable[[], None]]:
        return [
            *(self.start, self.start, self.take, self.take, self.fork, self.churn, self.look),
            *(self.delete, self.write, self.write, self.zero, self.lengthen, self.replace),
            *(self.forbid, self.lock, self.close_files, self.kill, self.stop, self.go_on),
        ]


@pytest.mark.parametrize(
    "attempts", [30, pytest.param(500, marks=pytest.mark.slow)], ids=["30", "500"]
)
def test_whatever_a_tenant_does_his_programs_keep_to_the_slice_and_nobody_else_notices(
    machine: Machine, container: Container, pytestconfig: pytest.Config, attempts: int
) -> None:
    seed = str(pytestconfig.getoption("--seed", default="") or "1")
    (machine.folder / "neighbour").mkdir()
    neighbour = Container(machine, machine.folder / "neighbour")
    container.limit(LIMIT)
    neighbour.limit(NEIGHBOUR)
    worker = opened(neighbour.start())
    assert worker.alloc(HELD)[0] == 0
    tenant = Tenant(container, random.Random(seed))
    done: list[str] = []

    for _ in range(attempts):
        way = tenant.chance.choice(tenant.ways)
        done.append(way.__name__)
        way()
        so_far = f"seed {seed}, attempt {len(done)}: {' '.join(done[-8:])}"
        assert worker.info() == (NEIGHBOUR - HELD, NEIGHBOUR), so_far
        result, pointer = worker.alloc(NEIGHBOUR - HELD)
        assert (result, worker.free(pointer)) == (0, 0), so_far
        assert worker.alloc(NEIGHBOUR - HELD + 1)[0] == OUT_OF_MEMORY, so_far
        # A region that is taken away gives each process a slice, never more.
        most = len(tenant.programs) * LIMIT
        assert machine.used() - HELD <= most, so_far
        assert [one.process.poll() for one in tenant.programs] == [None] * len(tenant.programs)

    tenant.go_on()
    for one in tenant.programs:
        tenant.within_slice(one)
    # A new container's worth of files, and all is as at the beginning.
    for one in list(tenant.programs):
        tenant.end(one)
    tenant.delete()
    first, second = opened(container.start()), opened(container.start())
    assert first.alloc(LIMIT)[0] == 0
    assert second.alloc(1)[0] == OUT_OF_MEMORY
    assert machine.used() == HELD + LIMIT
    assert worker.close() == 0
