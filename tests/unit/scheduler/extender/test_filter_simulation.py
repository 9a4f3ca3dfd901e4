"""Nodes that need not exist, asked whether they could take a pod."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hami_scheduler.extender.filter import simulate_filter
from hamicommon.admission.tampering.findings import TamperingPolicy
from hamicommon.admission.tampering.guard import Guard
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json
from hamicommon.settings import AdmissionSettings
from hamicommon.vendors.pod_request import DEFAULT_POLICY

from tests.unit.hamicommon.simulation.objects import asking, every_vendor, gpus, node

NODES = [node("small", {"devmem": 4000}), node("a", {}), {"metadata": {"name": "bare"}}, node("b")]
NODES[3]["metadata"]["annotations"]["hami.io/node-nvidia-register"] = "no list"


def answer(**body: Any) -> Json:
    guard = Guard.of(every_vendor(), TamperingPolicy.of(AdmissionSettings()))
    text = orjson.dumps(body)
    found: Json = orjson.loads(
        simulate_filter(text, every_vendor(), guard, DEFAULT_POLICY).to_json()
    )
    return found


def test_all_nodes_that_fit_are_answered_whole_and_the_others_with_their_reasons() -> None:
    # A template is a copy of a node, with the same uuids.
    copied = node("a", {})
    copied["metadata"]["name"] = "copied"

    found = answer(pod=asking(gpus(1, 6000)), nodes={"items": [*NODES, copied]})

    assert found["Nodes"] == {"metadata": {}, "items": [NODES[1], copied]}
    assert found["FailedNodes"] == {
        "small": "1/1 CardInsufficientMemory",
        "bare": "node unregistered",
        "b": "node unregistered",
    }
    assert (found["NodeNames"], found["Error"]) == (None, "")


def test_a_pod_without_cards_fits_everywhere_and_one_that_undoes_slices_nowhere() -> None:
    assert answer(pod=asking({}), nodes={"items": NODES})["Nodes"]["items"] == NODES
    undoing = asking(gpus(1, 100))
    undoing["spec"]["hostPID"] = True
    found = answer(pod=undoing, nodes={"items": NODES[:2]})
    assert found["Nodes"] is None
    assert found["FailedNodes"] == dict.fromkeys(("small", "a"), "PodRefused: hostPID")


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ({"nodenames": ["n"]}, "expected Node objects in Nodes.items"),
        ({"nodes": {"items": [{}]}}, "node 0"),
        ({"nodes": {"items": [3]}}, "must be a list of objects"),
    ],
)
def test_what_is_no_node_is_refused(nodes: Json, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        answer(pod=asking(gpus(1)), **nodes)
