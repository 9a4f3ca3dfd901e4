"""Pods whose containers have whole cards only may ask to run without libvgpu."""

from __future__ import annotations

from typing import Any

import pytest
from hamicommon.admission.mutation import mutate
from hamicommon.admission.tampering.guard import Guard

from tests.unit.hamicommon.admission.pods import CORES, GPU, MEM, PCT, container, pod, rules

WHOLE: list[list[dict[str, Any]]] = [
    [{GPU: 1}],
    [{GPU: 8, CORES: 100}],
    [{GPU: 1, PCT: 100, CORES: 0}],
    [{GPU: 2}, {}],
    [{GPU: 1}, {GPU: 1}],
]
PARTS: list[list[dict[str, Any]]] = [
    [{GPU: 1, MEM: 4096}],
    [{GPU: 1, PCT: 50}],
    [{GPU: 1, CORES: 50}],
    [{GPU: 2}, {GPU: 1, MEM: 4096}],
]


def asking(
    limits: list[dict[str, Any]], *, preload: str | None = None, control: str | None = None
) -> dict[str, Any]:
    env = {} if control is None else {"env": [{"name": "CUDA_DISABLE_CONTROL", "value": control}]}
    found = pod(*(container(each, name=f"c{n}", **env) for n, each in enumerate(limits)))
    if preload is not None:
        found["metadata"]["annotations"] = {"hami.io/preload": preload}
    return found


@pytest.mark.parametrize("limits", WHOLE, ids=str)
def test_a_pod_with_whole_cards_only_may_run_without_the_library(
    limits: list[dict[str, Any]],
) -> None:
    by_annotation = mutate(asking(limits, preload="false"), rules())
    by_variable = asking(limits, control="true")

    assert by_annotation.allowed, by_annotation.message
    assert by_annotation.warnings == mutate(asking(limits), rules()).warnings
    assert mutate(by_variable, rules()).allowed
    assert Guard.of(rules().vendors, rules().tampering).at_filter(by_variable) == ()


@pytest.mark.parametrize("limits", PARTS, ids=str)
def test_a_pod_with_a_part_of_a_card_is_refused_in_one_sentence(
    limits: list[dict[str, Any]],
) -> None:
    by_annotation = mutate(asking(limits, preload="false"), rules())
    by_variable = mutate(asking(limits, control="true"), rules())

    assert not by_annotation.allowed
    assert by_annotation.message == (
        f"annotation hami.io/preload is 'false' and container 'c{len(limits) - 1}' asks for a part "
        "of a card: only a pod whose containers have whole cards runs without libvgpu; leave the "
        "annotation out, or ask for cards without an amount of memory and with no cores or 100"
    )
    assert not by_variable.allowed
    assert "CUDA_DISABLE_CONTROL" in by_variable.message


@pytest.mark.parametrize("limits", [*WHOLE, *PARTS], ids=str)
def test_any_pod_may_ask_for_the_library(limits: list[dict[str, Any]]) -> None:
    assert mutate(asking(limits, preload="true"), rules()).allowed


@pytest.mark.parametrize("value", ["no", "", "False"])
def test_another_value_of_the_annotation_is_refused(value: str) -> None:
    verdict = mutate(asking([{GPU: 1}], preload=value), rules())

    assert not verdict.allowed
    assert verdict.message == f"annotation hami.io/preload is '{value}': true or false is wanted"


def test_a_misspelt_annotation_is_warned_of() -> None:
    given = asking([{GPU: 1}])
    given["metadata"]["annotations"] = {"hami.io/preloads": "false"}

    assert any("hami.io/preload" in warning for warning in mutate(given, rules()).warnings)
