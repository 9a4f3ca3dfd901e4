"""A container whose tenant acts at random (by a seed), beside one that works.

Whatever it does to the variables, mounts, the region, the processes and their calls, none of its
processes gets more than its slice or is ended by the library. The other container notices nothing.
"""

import contextlib
import fcntl
import os
import random
import select
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.native.allocators.allocators import KINDS
from tests.native.machine import MIB, Client, Container, Machine, open_context

OUT_OF_MEMORY = 2
MAX_PROGRAMS = 3
"""Processes of the tenant at a time: starting one is expensive."""
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
GUARD = 'mount --bind "$0" "$0" && mount -o remount,bind,ro / || exit 1; ({mount}) 2>/dev/null; '
"""In its own mount namespace: `$0`, the machine's folder, stays writable, all else is read-only."""
MOUNTS = [
    ":",
    'mount -t tmpfs tmpfs "$0/vgpu"',
    'mount -t tmpfs -o size=4k tmpfs "$0/vgpu"',
    'mount --bind "$0/vgpu" "$0/vgpu" && mount -o remount,bind,ro "$0/vgpu"',
    'mount --bind /dev/null "$0/vgpu/region.cache"',
    'mount --bind /proc "$0/vgpu"',
]
SIGNALS = [signal.SIGURG, signal.SIGWINCH, signal.SIGCHLD, signal.SIGCONT]
"""Signals that interrupt calls, but end no program."""


@dataclass
class Tenant:
    """The programs of the hostile container, and their state."""

    container: Container
    limit: int
    chance: random.Random
    programs: list[Client] = field(default_factory=list)
    stopped: set[int] = field(default_factory=set)

    @property
    def region(self) -> Path:
        return self.container.region

    @property
    def theirs(self) -> Path:
        """A file that is not the tenant's, and no region."""
        return self.container.folder / "theirs"

    def awake(self) -> Client | None:
        """One that answers."""
        free = [one for one in self.programs if one.pid not in self.stopped]
        return self.chance.choice(free) if free else None

    def run(self, mount: str, **env: str) -> Client:
        """A program behind the guard."""
        script = GUARD.format(mount=mount) + 'exec "$@"'
        prefix = ("unshare", "--mount", "sh", "-c", script, str(self.container.folder))
        return open_context(self.container.machine.start(self.container.env(**env), prefix))

    def start(self) -> None:
        """A program with random variables and mounts; the oldest ends where there are enough."""
        if len(self.programs) >= MAX_PROGRAMS:
            self.end(self.programs[0])
        chosen = self.chance.sample(VARIABLES, self.chance.randrange(5))
        env = {name: self.chance.choice(VALUES) for name in chosen}
        env["CUDA_VISIBLE_DEVICES"] = self.chance.choice(["0", "0,1"])
        self.programs.append(self.run(self.chance.choice(MOUNTS), **env))

    def end(self, one: Client) -> None:
        self.programs.remove(one)
        self.stopped.discard(one.pid)
        one.kill()

    # Attacks on the region.
    @contextlib.contextmanager
    def region_file(self) -> Iterator[int | None]:
        """Open the container's region; None if it is not a separate file, such as a link."""
        try:
            file = os.open(self.region, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            yield None
            return
        try:
            status = os.fstat(file)
            yield file if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 else None
        finally:
            os.close(file)

    def delete(self) -> None:
        if self.region.is_dir() and not self.region.is_symlink():
            shutil.rmtree(self.region)
        else:
            self.region.unlink(missing_ok=True)

    def write(self) -> None:
        """Write zeroes or noise anywhere."""
        with self.region_file() as file:
            if file is None:
                return
            size = os.fstat(file).st_size
            at = self.chance.choice([0, 24, 1600, 1856, 3040, self.chance.randrange(size + 1)])
            length = self.chance.choice([1, 8, 64, 4096])
            filler = self.chance.choice([bytes(length), b"\xff" * length, os.urandom(length)])
            os.pwrite(file, filler[: max(size - at, 0)], at)

    def zero(self) -> None:
        with self.region_file() as file:
            if file is not None:
                os.pwrite(file, bytes(os.fstat(file).st_size), 0)

    def lengthen(self) -> None:
        with self.region_file() as file:
            if file is not None:
                os.truncate(file, self.chance.choice([1 << 24, 1 << 30]))

    def replace(self) -> None:
        """Replace the region by something else."""
        self.delete()
        region = self.region
        self.chance.choice(
            [
                region.mkdir,
                region.touch,
                lambda: os.mkfifo(region),
                lambda: region.symlink_to(self.theirs),
                lambda: region.hardlink_to(self.theirs),
                lambda: region.symlink_to(self.container.folder / "nowhere"),
                lambda: region.symlink_to(region.name),
                lambda: region.write_bytes(os.urandom(10_000)),
            ]
        )()

    def forbid(self) -> None:
        with self.region_file() as file:
            if file is not None:
                os.fchmod(file, self.chance.choice([0, 0o444, 0o666]))

    def lock(self) -> None:
        """Held while a program allocates: one that is only killed would drop it."""
        one = self.awake()
        with self.region_file() as file:
            if one is None or file is None:
                return
            with contextlib.suppress(OSError):
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
            self.within_slice(one)

    # What the programs do.
    def take(self) -> None:
        if one := self.awake():
            kind = self.chance.choice(list(KINDS))
            size = self.chance.randrange(1, self.limit // MIB + 2) * MIB
            one.call("take", kind=kind, bytes=size)

    def fork(self) -> None:
        if one := self.awake():
            one.call("fork_and_alloc", bytes=self.chance.randrange(1, self.limit))

    def close_files(self) -> None:
        """Close the tenant's descriptors; their numbers stay free, or get its own files."""
        if one := self.awake():
            own = self.container.folder / f"own-{one.pid}"
            own.touch()
            one.call("close_descriptors", path=self.chance.choice([None, str(own)]))

    def churn(self) -> None:
        if one := self.awake():
            one.call("churn", bytes=self.chance.randrange(100_000, self.limit), rounds=2)

    def within_slice(self, one: Client) -> None:
        """Assert that the tenant sees its slice and is refused more."""
        free, total = one.info()
        assert (free <= total, total <= self.limit) == (True, True), (free, total)
        assert one.alloc(self.limit + 1)[0] == OUT_OF_MEMORY

    def look(self) -> None:
        if one := self.awake():
            self.within_slice(one)

    # Attacks on the programs.
    def busy(self) -> Client | None:
        """A program that allocates and frees since a random moment, and continues for a while."""
        if (one := self.awake()) is None:
            return None
        one.send("churn", bytes=self.chance.randrange(500_000, self.limit), rounds=200)
        assert one.process.stdout
        select.select([one.process.stdout], [], [], self.chance.random() * 0.01)
        return one

    def kill(self) -> None:
        if self.programs:
            self.end(self.chance.choice(self.programs))

    def kill_busy(self) -> None:
        if one := self.busy():
            self.end(one)

    def signal_busy(self) -> None:
        if one := self.busy():
            for _ in range(200):
                one.process.send_signal(self.chance.choice(SIGNALS))
            assert one.receive()["refused"] >= 0

    def stop(self) -> None:
        if one := self.awake():
            one.process.send_signal(signal.SIGSTOP)
            self.stopped.add(one.pid)

    def stop_busy(self) -> None:
        """Stop one, perhaps with the region's lock; read its answer when it continues."""
        if one := self.busy():
            self.stop_outside_driver(one)
            others = [each for each in self.programs if each.pid not in self.stopped | {one.pid}]
            for other in others:
                self.within_slice(other)
            one.process.send_signal(signal.SIGCONT)
            assert one.receive()["refused"] >= 0

    def stop_outside_driver(self, one: Client) -> None:
        """Stop a program where it does not hold the driver's own lock."""
        for _ in range(100):
            one.process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, one.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            if not self.container.machine.is_driver_locked_by(one.pid):
                return
            one.process.send_signal(signal.SIGCONT)
        raise AssertionError("the program never left the driver's lock")

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
            *(self.kill_busy, self.signal_busy, self.stop_busy),
        ]


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
    worker = open_context(neighbour.start())
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
        assert machine.used_bytes() - HELD <= most, so_far
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
    first, second = open_context(tenant.container.start()), open_context(tenant.container.start())
    assert first.alloc(LIMIT)[0] == 0
    assert second.alloc(1)[0] == OUT_OF_MEMORY
    assert machine.used_bytes() == HELD + LIMIT
    assert worker.close() == 0
