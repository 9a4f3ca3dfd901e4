"""HAMi's recorded answers compared with ours: the equal ones, and the trap that explains the rest.

A record is a case of `hamictl simulate --jsonl` with the answer of HAMi's real scheduler under
`expect`. `make test-recorded ARGS="FILE..."` runs files of them through the command and prints a
table (recorded admissions, which are lines with a pod, by `admissions.py`). The unit tests compare
the sample beside the checkout.
"""

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hamicommon.device_config import DeviceConfig
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.quantities import parse_int
from hamicommon.k8s.types import Json
from hamicommon.simulation.cluster import read_cluster
from hamicommon.simulation.verdict import judge
from hamicommon.vendors.registry import Vendors

from tests.reference import admissions

ASPECTS = ("verdict", "reasons", "cards", "annotations", "chosen")
"""Per node: fits or not; why not; which slices of which cards; everything written. Per case: the
node, or one that scores the same (HAMi breaks ties at random)."""

UNREADABLE = "TRAP-23"
"""HAMi drops a request that it can't read; we refuse the pod with the reason."""
SIDECARS = "8.3 (26)"
"""HAMi counts sidecars as init containers; we add them to the containers beside them."""
_EPOCH = datetime.fromtimestamp(0, UTC)
"""No time is part of an answer."""
_DEVICES = ("-devices-allocated", "-allocated", "-devices-to-allocate")


@dataclass(slots=True)
class Comparison:
    """The comparison of one record, or of all in a file."""

    compared: Counter[str] = field(default_factory=Counter)
    """By aspect."""
    equal: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)
    """One sentence each."""

    def note(self, aspect: str, ours: object, theirs: object, where: str) -> bool:
        """Count one pair of answers; return True if they are equal."""
        self.compared[aspect] += 1
        if ours == theirs:
            self.equal[aspect] += 1
            return True
        self.differences.append(f"{where}: {aspect}: ours is {ours!r}, HAMi's was {theirs!r}")
        return False


def compare(record: Json, ours: Json, vendors: Vendors) -> Comparison:
    """Compare a record with our answer to it."""
    found, theirs = Comparison(), record["expect"]
    for node in sorted(ours["nodes"].keys() | theirs["nodes"].keys()):
        mine, recorded = ours["nodes"].get(node, {}), theirs["nodes"].get(node, {})
        if not found.note("verdict", _verdict(mine), _verdict(recorded), node):
            continue
        if "reason" in recorded:
            found.note("reasons", mine.get("reason"), recorded["reason"], node)
        if "annotations" in recorded:
            written, expected = mine.get("annotations", {}), recorded["annotations"]
            found.note("cards", _slices(written), _slices(expected), node)
            found.note("annotations", written, expected, node)
    chosen = ours["chosen"]
    if chosen != theirs["chosen"] and _score_alike(record["in"], chosen, theirs["chosen"], vendors):
        chosen = theirs["chosen"]
    found.note("chosen", chosen, theirs["chosen"], "all nodes")
    return found


def trap_of(record: Json) -> str:
    """The numbered trap (ADR 8, protocol 8.3 and 11) that lets us answer differently, or ''.

    Only traps of which the pod itself shows that they are at work.
    """
    spec = record["in"]["pod"].get("spec") or {}
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    if any(_unreadable(amount) for each in containers for amount in _amounts(each)):
        return UNREADABLE
    if any(each.get("restartPolicy") == "Always" for each in spec.get("initContainers") or ()):
        return SIDECARS
    return ""


def _verdict(answer: Json) -> str:
    if not answer:
        return "not answered"
    if answer.get("unfiltered"):
        return "unfiltered"
    if answer["fits"]:
        return "fits"
    return "error" if "error" in answer else "refused"


def _slices(annotations: Json) -> dict[str, list[str]]:
    """By annotation key, the slices written in it, without empty containers."""
    return {
        key: [piece for piece in text.split(";") if piece]
        for key, text in annotations.items()
        if key.endswith(_DEVICES) and key.startswith("hami.io/")
    }


def _score_alike(given: Json, ours: Any, theirs: Any, vendors: Vendors) -> bool:
    """Return whether both nodes fit and score the same for us."""
    cluster = read_cluster(given["nodes"], given["pods"], vendors)
    nodes = judge(given["pod"], cluster, vendors, now=_EPOCH).nodes
    fits = {name: node.score for name, node in nodes.items() if node.fits}
    if ours not in fits or theirs not in fits:
        return False
    return bool(abs(fits[ours] - fits[theirs]) <= 1e-5 * max(1.0, abs(fits[ours])))


def _amounts(container: Json) -> Iterator[object]:
    resources = container.get("resources") or {}
    for part in ("limits", "requests"):
        for name, amount in (resources.get(part) or {}).items():
            if "/" in name:
                yield amount


def _unreadable(amount: object) -> bool:
    """No whole number, or more than an int32 holds."""
    try:
        value = parse_int(amount)
    except InvalidRequest:
        return True
    return value is None or not 0 <= value < 2**31


# --- the table of `make test-recorded` ------------------------------------------------------------

COMMAND = ("hamictl", "simulate", "--jsonl", "--enable-ascend", "--enable-iluvatar")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileResult:
    """The comparison of a file of records."""

    total: Comparison
    seconds: float
    by_trap: Counter[str]
    """Cases that are explained, by the trap's number."""
    unexplained: list[str]
    """Differences of the others, with the case's name."""


def run_file(records: list[Json], vendors: Vendors) -> FileResult:
    """Run the command once on all cases of the file."""
    lines = "".join(json.dumps({"name": r["name"], "in": r["in"]}) + "\n" for r in records)
    before = time.monotonic()
    ran = subprocess.run(COMMAND, input=lines.encode(), capture_output=True, check=True)
    seconds = time.monotonic() - before
    answers = [json.loads(line) for line in ran.stdout.splitlines()]
    total, by_trap, unexplained = Comparison(), Counter[str](), list[str]()
    for record, answer in zip(records, answers, strict=True):
        found = compare(record, answer, vendors)
        total.compared += found.compared
        total.equal += found.equal
        if found.differences and (trap := trap_of(record)):
            by_trap[trap] += 1
        else:
            unexplained += [f"{record['name']}: {each}" for each in found.differences]
    return FileResult(total=total, seconds=seconds, by_trap=by_trap, unexplained=unexplained)


def main(arguments: Sequence[str]) -> int:
    """Print a line per file and aspect; return 1 if a difference is unexplained."""
    vendors = Vendors.from_config(DeviceConfig(), enable_ascend=True, enable_iluvatar=True)
    wrong = 0
    for path in map(Path, arguments):
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if any("pod" in record for record in records):
            equal, differences = admissions.compare(records)
            counts = ", ".join(f"{what} {count}" for what, count in sorted(equal.items()))
            print_line(f"{path.name}: admissions {counts}; unexplained {len(differences)}")
            for difference in differences:
                print_line(f"  {difference}")
            wrong += len(differences)
            continue
        result = run_file(records, vendors)
        cells = " ".join(
            f"{aspect} {result.total.equal[aspect]}/{result.total.compared[aspect]}"
            for aspect in ASPECTS
        )
        traps = ", ".join(f"{trap} {count}" for trap, count in sorted(result.by_trap.items()))
        print_line(
            f"{path.name}: {cells}; by trap: {traps or 0}; unexplained {len(result.unexplained)}"
        )
        print_line(f"  {result.total.compared['chosen']} cases in {result.seconds:.1f} s")
        for difference in result.unexplained:
            print_line(f"  {difference}")
        wrong += len(result.unexplained)
    return 1 if wrong else 0


def print_line(line: str) -> None:
    """Write the line to stdout."""
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
