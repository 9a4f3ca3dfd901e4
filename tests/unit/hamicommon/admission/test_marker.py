"""The marker by which autoscalers leave slice pods to the scheduler, on each kind of pod."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hamicommon.admission.marker import SLICE
from hamicommon.admission.mutation import mutate
from hamicommon.admission.verdicts import AdmissionRules
from hamicommon.k8s.pod_object import containers_of
from hamicommon.k8s.types import Json

from tests.unit.hamicommon.admission.pods import (
    CORES,
    EVERY_VENDOR,
    GPU,
    MEM,
    PCT,
    apply_verdict,
    container,
    pod,
)

RULES = AdmissionRules(vendors=EVERY_VENDOR, scheduler_name="hami-scheduler", marks_slices=True)
SLICES: dict[str, Json] = {
    "whole card": pod(container({GPU: 1})),
    "several cards": pod(container({GPU: 2})),
    "memory": pod(container({GPU: 1, MEM: 4096})),
    "memory without a count": pod(container({MEM: 4096})),
    "percentage": pod(container({GPU: 1, PCT: 25})),
    "cores": pod(container({GPU: 1, CORES: 30})),
    "second container": pod(container(), container({GPU: 1, MEM: 4096})),
    "init": pod(container(), initContainers=[container({GPU: 1, MEM: 4096})]),
    "sidecar": pod(
        container(), initContainers=[container({GPU: 1, MEM: 4096}, restartPolicy="Always")]
    ),
    "mig": pod(container({GPU: 1, MEM: 4096}))
    | {"metadata": {"name": "p", "annotations": {"nvidia.com/vgpu-mode": "mig"}}},
    **{vendor.name: pod(container({vendor.resources.count: 1})) for vendor in EVERY_VENDOR},
}


def admit_pod(given: Json, rules: AdmissionRules = RULES) -> Json:
    return apply_verdict(given, mutate(given, rules))


def markers(found: Json) -> list[tuple[Any, Any]]:
    """The marker of each container, in limits and in requests."""
    parts = [container.get("resources") or {} for _, container in containers_of(found)]
    return [
        (part.get("limits", {}).get(SLICE), part.get("requests", {}).get(SLICE)) for part in parts
    ]


@pytest.mark.parametrize("kind", SLICES)
def test_each_kind_of_slice_pod_asks_for_what_no_node_has(kind: str) -> None:
    found = admit_pod(SLICES[kind])

    assert [each for each in markers(found) if each != (None, None)] == [("1", "1")]
    assert found["metadata"]["labels"] == {SLICE: "true"}


@pytest.mark.parametrize("kind", SLICES)
def test_a_marked_pod_stays_as_it_is(kind: str) -> None:
    assert mutate(admit_pod(SLICES[kind]), RULES).patch == []


def test_labels_of_the_pod_stay() -> None:
    given = pod(container({GPU: 1, SLICE: 0}))
    given["metadata"]["labels"] = {"app": "web"}

    found = admit_pod(given)

    assert found["metadata"]["labels"] == {"app": "web", SLICE: "true"}
    assert markers(found) == [("1", "1")]
    assert given["metadata"]["labels"] == {"app": "web"}


@pytest.mark.parametrize(
    ("given", "rules"),
    [
        pytest.param(pod(container()), RULES, id="no card"),
        pytest.param(pod(container({GPU: 0})), RULES, id="no card by name"),
        pytest.param(
            pod(container({GPU: 1}), schedulerName="another"), RULES, id="another scheduler"
        ),
        pytest.param(pod(container({GPU: 1})), replace(RULES, marks_slices=False), id="off"),
    ],
)
def test_no_other_pod_is_marked(given: Json, rules: AdmissionRules) -> None:
    found = admit_pod(given, rules)

    assert set(markers(found)) == {(None, None)}
    assert "labels" not in found["metadata"]
