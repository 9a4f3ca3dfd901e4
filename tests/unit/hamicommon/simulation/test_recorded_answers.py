"""`hamictl simulate --jsonl` gives the answers that HAMi's real scheduler was recorded to give.

Verdicts, reasons, cards and annotations are compared to the byte. HAMi breaks ties between nodes at
random, so a chosen node may also be one that scores the same for us.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from hamicommon.simulation.cases import UNFILTERED, Simulator
from hamicommon.simulation.cluster import read_cluster
from hamicommon.simulation.verdict import judge

from tests.unit.hamicommon import recorded
from tests.unit.hamicommon.simulation.objects import NOW, every_vendor

SIMULATOR = Simulator(vendors=every_vendor())

DIFFERENT_BY_TRAP: dict[str, str] = {}
"""Name of a recorded case -> number of the trap (protocol sheet 11) that explains our answer."""

FILES = ("filter-nvidia.jsonl", "filter-vendors.jsonl")


def differences(line: dict[str, Any]) -> Iterator[str]:
    """What we answer differently from HAMi, one sentence each."""
    ours, theirs = SIMULATOR.answer_line(recorded.as_line(line), 1), line["expect"]
    for node in sorted(ours["nodes"].keys() | theirs["nodes"].keys()):
        mine, recorded_answer = ours["nodes"].get(node), theirs["nodes"].get(node)
        if mine != recorded_answer:
            yield f"{node}: we say {mine}, HAMi said {recorded_answer}"
    if bool(ours["error"]) != bool(theirs["error"]):
        yield f"error {ours['error']!r}, HAMi's {theirs['error']!r}"
    if ours["chosen"] != theirs["chosen"] and not scores_the_same(line, ours, theirs):
        yield f"chosen {ours['chosen']}, HAMi's {theirs['chosen']}"


def scores_the_same(line: dict[str, Any], ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    if None in (ours["chosen"], theirs["chosen"]) or UNFILTERED in (
        ours["chosen"],
        theirs["chosen"],
    ):
        return False
    given = line["in"]
    cluster = read_cluster(given["nodes"], given["pods"], SIMULATOR.vendors)
    nodes = judge(given["pod"], cluster, SIMULATOR.vendors, now=NOW).nodes
    return nodes[ours["chosen"]].score == pytest.approx(nodes[theirs["chosen"]].score)


@pytest.mark.parametrize("file", FILES)
def test_the_answers_are_hamis(file: str) -> None:
    lines = recorded.lines(file)
    found = {line["name"]: list(differences(line)) for line in lines}
    different = {name: why for name, why in found.items() if why}

    unexplained = {name: why for name, why in different.items() if name not in DIFFERENT_BY_TRAP}
    assert unexplained == {}
    names = {line["name"] for line in lines}
    assert DIFFERENT_BY_TRAP.keys() & names == different.keys()
