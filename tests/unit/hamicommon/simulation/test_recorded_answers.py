"""`hamictl simulate --jsonl` gives the answers that HAMi's real scheduler was recorded to give.

Verdicts, reasons, cards and annotations are compared to the byte; what may differ, and by which
numbered trap, stands in `tests/reference/recorded.py`.
"""

import json

import pytest
from hamicommon.k8s.types import Json
from hamicommon.simulation.cases import Simulator

from tests.reference.recorded import ASPECTS, SIDECARS, UNREADABLE, compare, trap_of
from tests.unit.hamicommon import recorded
from tests.unit.hamicommon.simulation.objects import asking, every_vendor, gpus, node

VENDORS = every_vendor()
SIMULATOR = Simulator(vendors=VENDORS)

FILES = ("filter-nvidia.jsonl", "filter-vendors.jsonl")


@pytest.mark.parametrize("file", FILES)
def test_the_answers_are_hamis(file: str) -> None:
    unexplained = []
    for record in recorded.lines(file):
        ours = SIMULATOR.answer_line(recorded.as_line(record), 1)
        found = compare(record, ours, VENDORS)
        if found.differences and not trap_of(record):
            unexplained += [f"{record['name']}: {each}" for each in found.differences]
    assert unexplained == []


def record(pod: Json, *nodes: Json, **changed: Json) -> tuple[Json, Json]:
    """Return a record in which HAMi's answer is ours, except for `changed`, and our answer."""
    case = {"name": "case", "in": {"nodes": list(nodes), "pods": [], "pod": pod}}
    ours = SIMULATOR.answer_line(json.dumps(case), 1)
    theirs = json.loads(json.dumps(ours)) | changed
    return case | {"expect": theirs}, ours


def test_an_equal_answer_is_equal_in_every_aspect() -> None:
    found = compare(*record(asking(gpus(1, 5000)), node("a", {}), node("b")), VENDORS)
    assert found.differences == []
    assert [found.equal[aspect] for aspect in ASPECTS] == [2, 1, 1, 1, 1]
    assert found.compared == found.equal


@pytest.mark.parametrize(
    ("theirs", "different"),
    [
        pytest.param({"fits": False, "reason": "x"}, "verdict", id="verdict"),
        pytest.param({"fits": True, "unfiltered": True}, "verdict", id="unfiltered"),
        pytest.param(
            {"fits": True, "annotations": {"hami.io/vgpu-devices-allocated": "x;"}},
            "cards",
            id="cards",
        ),
    ],
)
def test_a_difference_is_found_and_named(theirs: Json, different: str) -> None:
    given, ours = record(asking(gpus(1, 5000)), node("a", {}))
    given["expect"]["nodes"]["a"] = theirs
    found = compare(given, ours, VENDORS)
    assert found.equal[different] == 0
    assert f"a: {different}: ours is " in found.differences[0]


def test_another_node_is_as_good_only_if_it_scores_the_same() -> None:
    pod, alike = asking(gpus(1, 5000)), [node("a", {}), node("b", {})]
    assert compare(*record(pod, *alike, chosen="b"), VENDORS).differences == []
    assert compare(*record(pod, *alike, chosen="c"), VENDORS).differences != []
    fuller, ours = record(pod, *alike, chosen="b")
    fuller["in"]["pods"] = [
        {
            "metadata": {
                "annotations": {
                    "hami.io/vgpu-node": "a",
                    "hami.io/vgpu-devices-allocated": "GPU-a-0,NVIDIA,1000,0:;",
                }
            }
        }
    ]
    assert compare(fuller, ours, VENDORS).differences != []


@pytest.mark.parametrize(
    ("pod", "trap"),
    [
        pytest.param(asking(gpus(1, 5000)), "", id="none"),
        pytest.param(asking(gpus(1, "16Gi")), UNREADABLE, id="bytes"),
        pytest.param(asking(gpus(1, "many")), UNREADABLE, id="no quantity"),
        pytest.param(asking({"cpu": "500m"}), "", id="an amount that is not ours"),
        pytest.param(
            {"spec": {"initContainers": [{"restartPolicy": "Always"}]}}, SIDECARS, id="a sidecar"
        ),
    ],
)
def test_a_trap_is_seen_in_the_pod(pod: Json, trap: str) -> None:
    assert trap_of({"in": {"pod": pod}}) == trap
