"""Cost of libvgpu, against the bare stand-in driver in the same run.

Prints ns per launch (no limit; a limit that does not throttle), ns per pair of allocation and free
with 1, 20,000 and 200,000 live blocks, the same in stream order, and the additional CPU time of a
process until its first `cuInit` has returned: for one process, for 64 concurrent ones, and if it
has to make the region file. Budgets are beside them. Each figure is a difference to the same
program without the library: two programs on one processor are measured in turns, each round is
compared with its neighbour, and the median of the differences counts. The place of a program in
memory changes a figure by some nanoseconds, so several pairs of programs are started. The figure is
their median; the minimum and the maximum are printed behind it.
With --peer, another library that limits by HAMi's variables is measured in the same way on the same
driver. Its figures stand beside ours, without those of 200,000 blocks: a peer may search them all.
Writes bench/results/libvgpu.json.
With --cores, prints the shares of the core limits in virtual time (cores.py) instead.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.figures import write_results
from bench.libvgpu import cores
from tests.native.machine import CARDS, MIB, ROOT, Container, Machine

SOURCE = Path(__file__).with_name("cost.c")
LAUNCH_NS, PAIR_NS, STREAM_PAIR_NS, START_US = 15.0, 150.0, 1500.0, 1000.0
LIVE = (1, 20_000, 200_000)
PEER_LIVE = 20_000
REGION = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
Env = dict[str, str]


@dataclass(frozen=True)
class Added:
    """Cost that the library added: the median over all couples, and the range of these."""

    value: float
    least: float
    most: float
    bare: float
    budget: float


class Program:
    """A running program that measures one round for each line it is sent."""

    def __init__(self, program: Path, env: Env, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [program, *map(str, arguments)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def round(self) -> float:
        """Run one round and return its figure."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def end(self) -> None:
        """Wait for the end of the program."""
        self.process.communicate(timeout=60)


@contextmanager
def one_processor() -> Iterator[None]:
    """This program, and those it starts, on one processor."""
    all_of_them = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(all_of_them)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, all_of_them)


def measure_added(
    program: Path, arguments: tuple[object, ...], bare: Env, ours: Env, couples: int, budget: float
) -> Added:
    """Both programs in turns on one processor, in several couples."""
    differences, without = [], []
    with one_processor():
        for _ in range(couples):
            pair = Program(program, bare, *arguments), Program(program, ours, *arguments)
            rounds = [(pair[0].round(), pair[1].round()) for _ in range(30)]
            for one in pair:
                one.end()
            differences.append(statistics.median(with_it - alone for alone, with_it in rounds))
            without.append(statistics.median(alone for alone, _ in rounds))
    return Added(
        statistics.median(differences),
        min(differences),
        max(differences),
        statistics.median(without),
        budget,
    )


def start_us(program: Path, env: Env, at_once: int, fresh: bool) -> float:
    """CPU time per process of so many that start together; fresh: the first makes the region."""
    if fresh and REGION in env:
        Path(env[REGION]).unlink(missing_ok=True)
    running = [
        subprocess.Popen([program, "start"], env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(at_once)
    ]
    return statistics.median(float(process.communicate(timeout=60)[0]) for process in running)


def measure_starts(
    program: Path, bare: Env, ours: Env, at_once: int, rounds: int, *, fresh: bool = False
) -> Added:
    """Starts of both programs in turns."""
    pairs = [
        (start_us(program, bare, at_once, fresh), start_us(program, ours, at_once, fresh))
        for _ in range(rounds)
    ]
    differences = [with_it - alone for alone, with_it in pairs]
    return Added(
        statistics.median(differences),
        min(differences),
        max(differences),
        statistics.median(alone for alone, _ in pairs),
        START_US,
    )


def peer_env(machine: Machine, peer: Path, region: Path, *, limited: bool) -> Env:
    """A container of HAMi with another library, the limits of ours in its variables."""
    limits = {f"CUDA_DEVICE_MEMORY_LIMIT_{card}": "8000m" for card in range(len(CARDS))}
    limits |= {"CUDA_DEVICE_SM_LIMIT": "50", "GPU_CORE_UTILIZATION_POLICY": "force"}
    own = {"LD_PRELOAD": str(peer), REGION: str(region), "LIBCUDA_LOG_LEVEL": "0"}
    return machine.env(**own, **(limits if limited else {}))


@dataclass(frozen=True)
class Cost:
    """Cost that ours added, and the peer's where there is one."""

    ours: Added
    peer: Added | None


def run(couples: int, peer: Path | None, report: Callable[[str, Cost], None]) -> None:
    """Measure everything; report each figure by name as it is found."""
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory(dir="/dev/shm") as shm:
        folder, memory = Path(name), Path(shm)
        program = folder / "cost"
        subprocess.run(["cc", "-O2", "-o", program, SOURCE, "-ldl"], check=True)
        machine = Machine.with_two_cards(folder)
        # Only what stands before the driver counts.
        machine.settings |= {"instant_launches": True, "instant_allocations": True}
        machine.write()
        container, bare = Container(machine, folder), machine.env()

        def theirs(*, limited: bool, place: Path = folder) -> Env | None:
            if peer is None:
                return None
            region = place / f"peer-{'limited' if limited else 'free'}"
            return peer_env(machine, peer, region, limited=limited)

        def measure(label: str, ours: Env, other: Env | None, one: Callable[[Env], Added]) -> None:
            report(label, Cost(one(ours), one(other) if other is not None else None))

        def calls(
            arguments: tuple[object, ...], budget: float, cards: Env
        ) -> Callable[[Env], Added]:
            return lambda env: measure_added(
                program, arguments, bare | cards, env | cards, couples, budget
            )

        def starts(at_once: int, *, fresh: bool = False) -> Callable[[Env], Added]:
            return lambda env: measure_starts(program, bare, env, at_once, 3 * couples, fresh=fresh)

        unlimited = container.env() | {REGION: str(folder / "free")}
        unlimited["HAMI_PATHMAP"] = f"/etc/hami={folder / 'nowhere'}"
        launch = ("launch",)
        measure(
            "launch, no limit, ns",
            unlimited,
            theirs(limited=False),
            calls(launch, LAUNCH_NS, {}),
        )
        lines = (f"device {c} memory_bytes {8000 * MIB} core_percent 50\n" for c in CARDS)
        limits = "hami-limits 1\npolicy force\n" + "".join(lines)
        container.limits(limits)
        ours, other = container.env(), theirs(limited=True)
        one_card = {"FAKEGPU_VISIBLE_DEVICES": CARDS[0]}
        for label, cards in (("", one_card), (", two cards", {})):
            name = f"launch, limit not reached{label}, ns"
            measure(name, ours, other, calls(launch, LAUNCH_NS, cards))
        for live in LIVE:
            searched = other if live <= PEER_LIVE else None
            name = f"alloc and free, {live} live blocks, ns"
            measure(name, ours, searched, calls(("alloc", live), PAIR_NS, {}))
        stream = calls(("stream",), STREAM_PAIR_NS, {})
        measure("alloc and free in stream order, ns", ours, other, stream)
        for at_once in (1, 64):
            measure(f"start, {at_once} at once, us", ours, other, starts(at_once))
        for label, place in (("disk", folder), ("/dev/shm", memory)):
            name = f"start, fresh region in {label}, us"
            fresh = Container(machine, folder, place / "fresh")
            fresh.limits(limits)
            measure(name, fresh.env(), theirs(limited=True, place=place), starts(1, fresh=True))


def main() -> int:
    """Measure the library against none, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.libvgpu", description=__doc__)
    parser.add_argument("--couples", type=int, default=7, help="programs started of each kind")
    parser.add_argument("--peer", type=Path, help="another library to preload, measured beside")
    parser.add_argument("--cores", action="store_true", help="core limits, simulated")
    options = parser.parse_args()
    subprocess.run(["make", "-s", "-C", ROOT / "native"], check=True)
    if options.cores:
        return cores.run()
    found: dict[str, Cost] = {}

    def report(name: str, cost: Cost) -> None:
        found[name] = cost
        one = cost.ours
        state = "within" if one.value <= one.budget else "OVER"
        peer = f"   peer {cost.peer.value:.1f}" if cost.peer is not None else ""
        sys.stdout.write(
            f"{name:42} {one.value:8.1f}  ({one.least:.1f} to {one.most:.1f}; bare {one.bare:.1f})"
            f"   {state} the budget of {one.budget:.0f}{peer}\n"
        )
        sys.stdout.flush()

    run(options.couples, options.peer.resolve() if options.peer else None, report)
    write_results("libvgpu", {name: asdict(one) for name, one in found.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
