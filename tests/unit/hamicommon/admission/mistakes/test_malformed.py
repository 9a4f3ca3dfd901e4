"""Refusals of malformed requests, and warnings of values that are read differently."""

import pytest
from hamicommon.admission.mutation import MAX_WARNINGS, mutate
from hamicommon.admission.verdicts import AdmissionRules

from tests.unit.hamicommon.admission.pods import (
    CORES,
    EVERY_VENDOR,
    GPU,
    MEM,
    PCT,
    container,
    pod,
    rules,
)


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({GPU: 1, MEM: "16Gi"}, "nvidia.com/gpumem is 16Gi: expected a whole number of MiB"),
        ({GPU: -1}, "nvidia.com/gpu is -1: expected a whole number of cards"),
        ({GPU: "0.5"}, "nvidia.com/gpu is 0.5"),
        (
            {GPU: 1, PCT: 101},
            "nvidia.com/gpumem-percentage is 101: expected a whole number from 1 to 100",
        ),
        ({PCT: -1}, "nvidia.com/gpumem-percentage is -1"),
        ({GPU: 1, CORES: "x"}, "nvidia.com/gpucores is x, which is not a quantity"),
    ],
)
def test_a_malformed_amount_is_denied_with_field_value_and_what_would_be_right(
    limits, sentence
) -> None:
    verdict = mutate(pod(container(limits)), rules())

    assert (verdict.allowed, verdict.code, verdict.patch) == (False, 422, [])
    assert verdict.message.startswith("container 'c': " + sentence)


def test_what_is_taken_otherwise_than_written_is_warned_of() -> None:
    verdict = mutate(pod(container({GPU: 1, PCT: 0, CORES: 150})), rules())

    assert verdict.allowed
    assert len(verdict.warnings) == 2
    assert "gpumem-percentage 0 means not given" in verdict.warnings[0]
    assert "counts as 100" in verdict.warnings[1]


ANY_TEXT = "\0\n\u202e\N{GRINNING FACE}x" * 40_000


READ_BY_THE_FILTER = [
    ("nvidia.com/gpu", "nvidia.com/use-gputype"),
    ("nvidia.com/gpu", "nvidia.com/nouse-gpuuuid"),
    ("nvidia.com/gpu", "nvidia.com/vgpu-mode"),
    ("nvidia.com/gpu", "nvidia.com/numa-bind"),
    ("nvidia.com/gpu", "hami.io/node-scheduler-policy"),
    ("nvidia.com/gpu", "hami.io/gpu-scheduler-policy"),
    ("nvidia.com/gpu", "hami.io/device-scoring-weights"),
    ("hygon.com/dcunum", "hygon.com/use-dcutype"),
    ("cambricon.com/vmlu", "cambricon.com/use-gpuuuid"),
    ("metax-tech.com/sgpu", "metax-tech.com/use-gpuuuid"),
    ("metax-tech.com/sgpu", "metax-tech.com/sgpu-app-class"),
    ("huawei.com/Ascend910B3", "hami.io/use-Ascend910B3-uuid"),
    ("huawei.com/Ascend910B3", "huawei.com/vnpu-mode"),
    ("kunlunxin.com/vxpu", "hami.io/use-xpu-uuid"),
]


@pytest.mark.parametrize(("resource", "key"), READ_BY_THE_FILTER)
def test_an_annotation_that_the_filter_can_t_read_is_refused_in_one_sentence(
    resource: str, key: str
) -> None:
    served = AdmissionRules(vendors=EVERY_VENDOR, scheduler_name="hami-scheduler")
    given_ = pod(container({resource: 1}))
    given_["metadata"]["annotations"] = {key: ANY_TEXT}

    verdict = mutate(given_, served)

    assert not verdict.allowed
    assert verdict.code == 422
    assert verdict.reason.startswith("malformed-")
    assert key in verdict.message
    assert verdict.message.isprintable()
    assert len(verdict.message) < 500


@pytest.mark.parametrize(
    "weights",
    [
        "",
        "x",
        "slot=1",
        "slot=1,slot=1,core=1",
        "slot=0,core=0,memory=0",
        "slot=-1,core=1,memory=1",
        "slot=a,core=1,memory=1",
    ],
)
def test_malformed_weights_are_refused_with_what_would_be_right(weights: str) -> None:
    given_ = pod(container({GPU: 1}))
    given_["metadata"]["annotations"] = {"hami.io/device-scoring-weights": weights}

    verdict = mutate(given_, rules())

    assert (verdict.allowed, verdict.code) == (False, 422)
    assert verdict.reason == "malformed-annotation"
    assert verdict.message == (
        f"annotation hami.io/device-scoring-weights is '{weights}': expected each of slot, core "
        "and memory once, with a whole number, not all 0, for example slot=1,core=1,memory=1"
    )


def test_malformed_weights_of_a_pod_without_a_card_matter_to_nobody() -> None:
    given_ = pod(container({GPU: 0}))
    given_["metadata"]["annotations"] = {"hami.io/device-scoring-weights": "slot=1"}

    assert mutate(given_, rules()).allowed


def test_warnings_are_bounded_in_number_and_length() -> None:
    given_ = pod(container({GPU: 1}))
    odd = {f"nvidia.com/gpumen-{number}": "1" for number in range(3000)}
    given_["metadata"]["annotations"] = odd | {"nvidia.com/gpumem": ANY_TEXT[:16_000]}

    warnings = mutate(given_, rules()).warnings

    assert len(warnings) <= MAX_WARNINGS + 1
    assert all(len(text) <= 1024 and text.isprintable() for text in warnings)
