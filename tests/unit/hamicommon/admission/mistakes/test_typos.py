"""Names that look like ours cause a warning; no whole card is given silently (HAMi#2862)."""

from __future__ import annotations

import pytest
from hamicommon.admission.mistakes.typos import misspelt
from hamicommon.admission.mutation import mutate
from hamicommon.admission.verdicts import AdmissionRules
from hamicommon.device_config import DeviceConfig
from hamicommon.k8s.types import Json
from hamicommon.vendors.registry import Vendors

VENDORS = Vendors.from_config(DeviceConfig(), enable_ascend=True, enable_iluvatar=True)
RULES = AdmissionRules(vendors=VENDORS, scheduler_name="hami-scheduler")

GPU: Json = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}


def a_pod(limits: Json, *, annotations: Json | None = None, labels: Json | None = None) -> Json:
    return {
        "metadata": {"annotations": annotations or {}, "labels": labels or {}},
        "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
    }


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("nvidia.com/gpumemory", "nvidia.com/gpumem"),
        ("nvidia.com/gpu-mem", "nvidia.com/gpumem"),
        ("nvidia.com/gpucore", "nvidia.com/gpucores"),
        ("nvidia.com/gpumem-percent", "nvidia.com/gpumem-percentage"),
        ("nvidia.com/vgpu", "nvidia.com/gpu"),
        ("nvdia.com/gpumem", "nvidia.com/gpumem"),
        ("cambricon.com/mlu", "cambricon.com/vmlu"),
        ("cambricon.com/mlu.smlu", "cambricon.com/mlu.smlu.vcore"),
        ("cambricon.com/mlu.smlu.memory", "cambricon.com/mlu.smlu.vmemory"),
        ("hygon.com/dcumemory", "hygon.com/dcumem"),
        ("huawei.com/ascend910b3", "huawei.com/Ascend910B3"),
        ("mthreads.com/vgpu-memory", "mthreads.com/sgpu-memory"),
    ],
)
def test_a_resource_that_is_nearly_one_of_ours_is_asked_about(written: str, meant: str) -> None:
    assert misspelt(a_pod({**GPU, written: "5"}), VENDORS) == (
        f"container 'c' asks for {written} 5, which is no resource that is served here: "
        f"was {meant} meant?",
    )


@pytest.mark.parametrize(
    "resource",
    [
        "cpu",
        "memory",
        "hugepages-2Mi",
        "nvidia.com/mig-1g.5gb",
        "nvidia.com/gpu.shared",
        "intel.com/gpu",
        "example.com/tpu",
        "rdma/hca_shared_devices_a",
    ],
)
def test_resources_of_others_are_left_alone(resource: str) -> None:
    assert misspelt(a_pod({**GPU, resource: "5"}), VENDORS) == ()


@pytest.mark.parametrize(
    ("where", "what"),
    [("annotations", "annotation"), ("labels", "label")],
    ids=["annotation", "label"],
)
def test_an_amount_beside_the_resources_is_reported_to_be_without_effect(
    where: str, what: str
) -> None:
    pod = a_pod({"nvidia.com/gpu": "1"}, **{where: {"nvidia.com/gpumem": "3000"}})

    assert misspelt(pod, VENDORS) == (
        f"{what} nvidia.com/gpumem '3000' is without effect: amounts are asked for under "
        "resources.limits of a container",
    )


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("nvidia.com/use-gpuuid", "nvidia.com/use-gpuuuid"),
        ("nvidia.com/no-use-gputype", "nvidia.com/nouse-gputype"),
        ("hami.io/gpu-schedule-policy", "hami.io/gpu-scheduler-policy"),
        ("hami.io/device-scoring-weight", "hami.io/device-scoring-weights"),
    ],
)
def test_an_annotation_that_is_nearly_one_that_is_read_is_asked_about(key: str, meant: str) -> None:
    assert misspelt(a_pod(GPU, annotations={key: "x"}), VENDORS) == (
        f"annotation {key} has no effect here: was {meant} meant?",
    )


def test_an_annotation_that_chooses_cards_and_is_never_evaluated_is_reported() -> None:
    """HAMi declares it and does not read it (protocol 1.0.2)."""
    [sentence] = misspelt(a_pod(GPU, annotations={"vastaitech.com/use-va": "x"}), VENDORS)

    assert sentence.startswith("annotation vastaitech.com/use-va has no effect here")


def test_annotations_that_are_read_or_are_not_ours_are_left_alone() -> None:
    pod = a_pod(
        GPU,
        annotations={
            "nvidia.com/use-gpuuuid": "a",
            "hami.io/no-use-Ascend910B3-uuid": "b",
            "metax-tech.com/sgpu-qos-policy": "best-effort",
            "hami.io/node-scheduler-policy": "spread",
            "hami.io/vgpu-devices-allocated": "forged",
            "prometheus.io/scrape": "true",
        },
    )

    assert misspelt(pod, VENDORS) == ()


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        pytest.param(
            {"hygon.com/dcumem": "1000", "hygon.com/dcucores": "10"},
            "asks for hygon.com/dcumem 1000 and hygon.com/dcucores 10 but for no "
            "hygon.com/dcunum: it is given no card",
            id="without the count",
        ),
        pytest.param(
            {"nvidia.com/gpu": "0", "nvidia.com/gpumem": "1000"},
            "asks for nvidia.com/gpumem 1000 but for no nvidia.com/gpu: it is given no card",
            id="count of zero",
        ),
    ],
)
def test_amounts_without_a_card_are_reported(limits: Json, sentence: str) -> None:
    assert misspelt(a_pod(limits), VENDORS) == (f"container 'c' {sentence}",)


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"aws.amazon.com/neuroncore": "2"}, id="cores that ask for a device"),
        pytest.param({"enflame.com/gcu-memory": "8", "enflame.com/gcu-core": "30"}, id="a slice"),
        pytest.param({"hygon.com/dcumem": "0"}, id="none of nothing"),
    ],
)
def test_amounts_that_ask_for_a_card_themselves_need_no_count(limits: Json) -> None:
    assert misspelt(a_pod(limits), VENDORS) == ()


def test_the_webhook_warns_after_defaults_are_filled_in() -> None:
    """A request for memory only gets a card by default, so there is no warning."""
    assert mutate(a_pod({"nvidia.com/gpumem": "1000"}), RULES).warnings == ()


def test_the_webhook_warns_also_of_a_pod_that_gets_no_card() -> None:
    verdict = mutate(a_pod({"hygon.com/dcumem": "1000"}), RULES)

    assert verdict.allowed
    assert ["it is given no card" in warning for warning in verdict.warnings] == [True]
