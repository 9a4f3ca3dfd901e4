"""What libvgpu costs, against the bare stand-in driver in the same run.

Prints ns per launch (no limit; a limit that does not throttle), ns per pair of allocation and free
with 1, 20,000 and 200,000 live blocks, and the CPU time that a process spends more until its first
`cuInit` has returned, alone and 64 at once; budgets are beside them. Each figure is a difference
to the same program without the library: two programs on one processor are measured in turns, each
round is compared with its neighbour, and the median of the differences counts. Where a program lies
in memory makes some nanoseconds of difference, so several couples of programs are started, and the
figure is the median of theirs; the least and the most are printed behind it.
Writes bench/results/libvgpu.json.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.native.machine import CARDS, MIB, ROOT, Container, Machine

SOURCE = Path(__file__).with_name("cost.c")
RESULTS = Path(__file__).parents[1] / "results" / "libvgpu.json"
LAUNCH_NS, PAIR_NS, START_US = 15.0, 150.0, 1000.0
LIVE = (1, 20_000, 200_000)
Env = dict[str, str]


@dataclass(frozen=True)
class Added:
    """What the library added: the median over all couples, and the range of these."""

    value: float
    least: float
    most: float
    bare: float
    budget: float


class Program:
    """A running program that measures one round for each line it is sent."""

    def __init__(self, program: Path, env: Env, *words: object) -> None:
        self.process = subprocess.Popen(
            [program, *map(str, words)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def round(self) -> float:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def end(self) -> None:
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


def added(
    program: Path, words: tuple[object, ...], bare: Env, ours: Env, couples: int, budget: float
) -> Added:
    """Both programs in turns on one processor, in several couples."""
    differences, without = [], []
    with one_processor():
        for _ in range(couples):
            pair = Program(program, bare, *words), Program(program, ours, *words)
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


def start_us(program: Path, env: Env, at_once: int) -> float:
    """CPU time per process of so many that start together."""
    running = [
        subprocess.Popen([program, "start"], env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(at_once)
    ]
    return statistics.median(float(process.communicate(timeout=60)[0]) for process in running)


def started(program: Path, bare: Env, ours: Env, at_once: int, rounds: int) -> Added:
    """Starts of both programs in turns."""
    pairs = [
        (start_us(program, bare, at_once), start_us(program, ours, at_once)) for _ in range(rounds)
    ]
    differences = [with_it - alone for alone, with_it in pairs]
    return Added(
        statistics.median(differences),
        min(differences),
        max(differences),
        statistics.median(alone for alone, _ in pairs),
        START_US,
    )


def run(couples: int, report: Callable[[str, Added], None]) -> None:
    """Measures everything; reports each figure by name as it is found."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "cost"
        subprocess.run(["cc", "-O2", "-o", program, SOURCE, "-ldl"], check=True)
        machine = Machine.with_two_cards(folder)
        # Only what stands before the driver counts.
        machine.settings |= {"instant_launches": True, "instant_allocations": True}
        machine.write()
        container, bare = Container(machine, folder), machine.env()
        unlimited = {**container.env(), "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(folder / "free")}
        unlimited["HAMI_PATHMAP"] = f"/etc/hami={folder / 'nowhere'}"
        launch = ("launch",)
        report("launch, no limit, ns", added(program, launch, bare, unlimited, couples, LAUNCH_NS))
        container.limits(
            "hami-limits 1\npolicy force\n"
            + "".join(f"device {c} memory_bytes {8000 * MIB} core_percent 50\n" for c in CARDS)
        )
        ours = container.env()
        one = {"FAKEGPU_VISIBLE_DEVICES": CARDS[0]}
        for label, cards in (("", one), (", two cards", {})):
            found = added(program, launch, bare | cards, ours | cards, couples, LAUNCH_NS)
            report(f"launch, limit not reached{label}, ns", found)
        for live in LIVE:
            found = added(program, ("alloc", live), bare, ours, couples, PAIR_NS)
            report(f"alloc and free, {live} live blocks, ns", found)
        for at_once in (1, 64):
            found = started(program, bare, ours, at_once, 3 * couples)
            report(f"start, {at_once} at once, us", found)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.libvgpu", description=__doc__)
    parser.add_argument("--couples", type=int, default=7, help="programs started of each kind")
    couples = parser.parse_args().couples
    subprocess.run(["make", "-s", "-C", ROOT / "native"], check=True)
    found: dict[str, Added] = {}

    def report(name: str, one: Added) -> None:
        found[name] = one
        word = "within" if one.value <= one.budget else "OVER"
        sys.stdout.write(
            f"{name:42} {one.value:8.1f}  ({one.least:.1f} to {one.most:.1f}; bare {one.bare:.1f})"
            f"   {word} the budget of {one.budget:.0f}\n"
        )
        sys.stdout.flush()

    run(couples, report)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(
        json.dumps({name: asdict(one) for name, one in found.items()}, indent=2) + "\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
