"""Warnings of odd requests, with the consequence of each."""

from __future__ import annotations

from typing import Any

import pytest
from hamicommon import device_config
from hamicommon.admission.mistakes.warnings import remarks
from hamicommon.admission.mutation import mutate
from hamicommon.admission.verdicts import AdmissionRules
from hamicommon.vendors.registry import Vendors

VENDORS = Vendors.from_config(device_config.load(None), enable_ascend=True)


def a_pod(annotations: dict[str, str], **limits: str) -> dict[str, Any]:
    wanted = {"nvidia.com/gpu": "1"} | {f"nvidia.com/{k}": v for k, v in limits.items()}
    return {
        "metadata": {"annotations": annotations},
        "spec": {"containers": [{"name": "c", "resources": {"limits": wanted}}]},
    }


@pytest.mark.parametrize(
    ("annotations", "parts"),
    [
        pytest.param(
            {"hami.io/node-scheduler-policy": "best"},
            ["'best': expected binpack, spread or fragmentation; it is taken as binpack"],
            id="node policy",
        ),
        pytest.param(
            {"hami.io/gpu-scheduler-policy": "spread,fast"}, ["has 'fast'"], id="card policy"
        ),
        pytest.param(
            {"nvidia.com/use-gpuuuid": "a,b", "nvidia.com/nouse-gpuuuid": "b"},
            ["card uuid b is both wanted and unwanted"],
            id="uuid wanted and not",
        ),
        pytest.param(
            {"nvidia.com/use-gputype": "A100", "nvidia.com/nouse-gputype": "A100"},
            ["card type A100 is both wanted and unwanted"],
            id="type wanted and not",
        ),
        pytest.param(
            {"nvidia.com/use-gputype": "A100-SXM4", "nvidia.com/nouse-gputype": "a100"},
            ["card type A100-SXM4 is both wanted and unwanted"],
            id="type that is part of the wanted one",
        ),
        pytest.param(
            {"nvidia.com/use-gputype": "A100", "nvidia.com/nouse-gputype": "A100-SXM4"},
            [],
            id="some of the wanted type unwanted",
        ),
        pytest.param(
            {"nvidia.com/numa-bind": "yes"},
            ["numa-bind is 'yes': expected true or false; it is taken as false"],
            id="numa-bind",
        ),
        pytest.param({"nvidia.com/numa-bind": "T"}, [], id="numa-bind as Go writes it"),
        pytest.param(
            {"nvidia.com/vgpu-mode": "hamicore"},
            ["vgpu-mode is 'hamicore': expected hami-core, mig, mps or a list of them"],
            id="mode",
        ),
        pytest.param({"nvidia.com/vgpu-mode": "mig, mps"}, [], id="list of modes"),
        pytest.param(
            {"huawei.com/vnpu-mode": "soft"},
            ["vnpu-mode is 'soft': expected hami-core; it is left out"],
            id="mode of Ascend chips",
        ),
        pytest.param({"hami.io/node-scheduler-policy": "spread"}, [], id="nothing odd"),
    ],
)
def test_an_odd_annotation_is_named_with_its_value(
    annotations: dict[str, str], parts: list[str]
) -> None:
    found = remarks(a_pod(annotations), VENDORS)

    assert len(found) == len(parts)
    assert all(part in remark for part, remark in zip(parts, found, strict=True))


def test_memory_asked_for_twice_is_reported_with_the_one_that_wins() -> None:
    twice = a_pod({}, gpumem="100", **{"gpumem-percentage": "50"})

    [remark] = remarks(twice, VENDORS)

    assert "nvidia.com/gpumem 100 and nvidia.com/gpumem-percentage 50" in remark
    assert remark.endswith("nvidia.com/gpumem wins")


@pytest.mark.parametrize("zero", ["0", "0k", 0])
def test_no_memory_is_the_whole_cards_and_is_reported(zero: Any) -> None:
    [remark] = remarks(a_pod({}, gpumem=zero), VENDORS)

    assert remark == (
        "container 'c': nvidia.com/gpumem 0 means not given: the whole memory of each card is "
        "granted; write the MiB that it needs"
    )


def test_no_memory_of_every_vendor_with_memory_is_reported() -> None:
    # Enflame's memory follows from its slices.
    for vendor in (each for each in VENDORS if each.resources.memory and each.name != "Enflame"):
        names = vendor.resources
        limits = {names.count: "1", names.memory: "0"}
        pod = {"metadata": {}, "spec": {"containers": [{"resources": {"limits": limits}}]}}
        found = [r for r in remarks(pod, VENDORS) if f"{names.memory} 0 means not given" in r]
        assert len(found) == 1, vendor.name


def test_no_memory_beside_a_percentage_is_the_percentage() -> None:
    assert remarks(a_pod({}, gpumem="0", **{"gpumem-percentage": "50"}), VENDORS) == ()


def test_the_webhook_warns_of_what_is_odd_and_admits_the_pod() -> None:
    rules = AdmissionRules(vendors=VENDORS, scheduler_name="hami-scheduler")

    verdict = mutate(a_pod({"hami.io/node-scheduler-policy": "best"}), rules)

    assert verdict.allowed
    assert any("taken as binpack" in warning for warning in verdict.warnings)
