"""What libvgpu costs, against the bare stand-in driver in the same run.

Prints ns per launch (no limit; a limit that does not throttle), ns per pair of allocation and free
with 1, 20,000 and 200,000 live blocks, and the CPU time that a process spends more until its first
`cuInit` has returned, alone and 64 at once. Each figure is the difference to the same program
without the library; the budgets are beside them. Writes bench/results/libvgpu.json.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.native.machine import CARDS, MIB, ROOT, Container, Machine

SOURCE = Path(__file__).with_name("cost.c")
RESULTS = Path(__file__).parents[1] / "results" / "libvgpu.json"
LAUNCH_NS, PAIR_NS, START_US = 15.0, 150.0, 1000.0
LIVE = (1, 20_000, 200_000)
Env = dict[str, str]


def figure(program: Path, env: Env, *words: object) -> float:
    done = subprocess.run(
        [program, *map(str, words)], env=env, capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def added(measure: Callable[[Env], float], bare: Env, ours: Env, rounds: int) -> float:
    """The least that the library added: both programs in turns, the best of each."""
    samples = [(measure(bare), measure(ours)) for _ in range(rounds)]
    return min(with_it for _, with_it in samples) - min(without for without, _ in samples)


def start_us(program: Path, env: Env, at_once: int) -> float:
    """CPU time per process of so many that start together."""
    running = [
        subprocess.Popen([program, "start"], env=env, stdout=subprocess.PIPE, text=True)
        for _ in range(at_once)
    ]
    return statistics.median(float(process.communicate(timeout=60)[0]) for process in running)


def run(rounds: int) -> dict[str, tuple[float, float]]:
    """Figure and budget by name."""
    found: dict[str, tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "cost"
        subprocess.run(["cc", "-O2", "-o", program, SOURCE, "-ldl"], check=True)
        machine = Machine.with_two_cards(folder)
        machine.settings["instant_launches"] = True  # only what stands before the driver counts
        machine.write()
        container, bare = Container(machine, folder), machine.env()

        def launches(env: Env) -> float:
            return figure(program, env, "launch", 20_000)

        unlimited = {**container.env(), "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(folder / "free")}
        unlimited["HAMI_PATHMAP"] = f"/etc/hami={folder / 'nowhere'}"
        found["launch, no limit, ns"] = (added(launches, bare, unlimited, rounds), LAUNCH_NS)
        container.limits(
            "hami-limits 1\npolicy force\n"
            + "".join(f"device {c} memory_bytes {8000 * MIB} core_percent 50\n" for c in CARDS)
        )
        ours = container.env()
        one = {"FAKEGPU_VISIBLE_DEVICES": CARDS[0]}
        for label, cards in (("", one), (", two cards", {})):
            found[f"launch, limit not reached{label}, ns"] = (
                added(launches, bare | cards, ours | cards, rounds),
                LAUNCH_NS,
            )
        for live in LIVE:

            def pairs(env: Env, live: int = live) -> float:
                return figure(program, env, "alloc", live, 2_000)

            label = f"alloc and free, {live} live blocks, ns"
            found[label] = (added(pairs, bare, ours, rounds), PAIR_NS)
        for at_once in (1, 64):

            def start(env: Env, at_once: int = at_once) -> float:
                return start_us(program, env, at_once)

            label = f"start, {at_once} at once, us"
            found[label] = (added(start, bare, ours, 3 * rounds), START_US)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.libvgpu", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns of both programs")
    rounds = parser.parse_args().rounds
    subprocess.run(["make", "-s", "-C", ROOT / "native"], check=True)
    found = run(rounds)
    for name, (value, budget) in found.items():
        word = "within" if value <= budget else "OVER"
        sys.stdout.write(f"{name:42} {value:9.1f}   {word} the budget of {budget:.0f}\n")
    RESULTS.parent.mkdir(exist_ok=True)
    figures = {name: {"value": value, "budget": budget} for name, (value, budget) in found.items()}
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
