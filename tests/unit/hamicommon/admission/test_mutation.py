"""The webhook's answers, decision by decision (protocol 3 and 1.1)."""

from copy import deepcopy
from typing import Any

import jsonpatch
import pytest
from hamicommon.admission.mutation import mutate
from hamicommon.admission.verdicts import AdmissionCircumstances, AdmissionResult, AdmissionRules
from hamicommon.device_config import DeviceConfig
from hamicommon.vendors.registry import Vendors
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.hamicommon import recorded
from tests.unit.hamicommon.admission.pods import (
    CORES,
    GPU,
    MEM,
    PCT,
    SET_SCHEDULER,
    container,
    patched,
    pod,
    rules,
)


@pytest.mark.parametrize(
    ("limits", "added"),
    [
        ({GPU: 1}, {CORES: "100"}),
        ({GPU: 1, PCT: 100}, {CORES: "100"}),
        ({GPU: 1, PCT: 50}, {}),
        ({GPU: 1, MEM: 100}, {}),
        ({GPU: 1, CORES: 30}, {}),
        ({MEM: 500}, {GPU: "1"}),
        ({CORES: 10}, {GPU: "1"}),
        ({PCT: 100}, {GPU: "1", CORES: "100"}),
    ],
)
def test_defaults_are_filled_in(limits, added) -> None:
    given_ = pod(container(limits))
    after = patched(given_, mutate(given_, rules()))

    assert after["spec"]["containers"][0]["resources"]["limits"] == limits | added
    assert after["spec"]["schedulerName"] == "hami-scheduler"


def test_the_patch_holds_only_what_changed() -> None:
    assert mutate(pod(container({GPU: 1, MEM: 5})), rules()).patch == [SET_SCHEDULER]


def test_the_given_pod_is_left_as_it_is() -> None:
    given_ = pod(container({GPU: 1}))
    before = deepcopy(given_)
    mutate(given_, rules())

    assert given_ == before


def test_a_pod_without_cards_is_left_alone() -> None:
    assert mutate(pod(container()), rules()) == AdmissionResult(allowed=True, reason="no-cards")


def test_memory_alone_is_not_ours_when_there_is_no_default_number() -> None:
    assert mutate(pod(container({MEM: 100})), rules(default_gpu_num=0)).patch == []


def test_a_pod_without_containers_is_denied() -> None:
    verdict = mutate({"metadata": {}, "spec": {"containers": []}}, rules())
    assert (verdict.allowed, verdict.code, verdict.message) == (
        False,
        403,
        "pod has no containers",
    )


@pytest.mark.parametrize(
    ("name", "options", "taken"),
    [
        ("default-scheduler", {}, True),
        ("hami-scheduler", {}, True),
        ("", {}, True),
        ("mine", {}, False),
        ("default-scheduler", {"force": False}, False),
        ("mine", {"scheduler_name": ""}, False),
    ],
)
def test_a_pod_of_another_scheduler_is_left_to_it(name, options, taken) -> None:
    verdict = mutate(pod(container({GPU: 1}), schedulerName=name), rules(**options))

    assert verdict.allowed
    assert bool(verdict.patch) is taken
    assert ("different scheduler" in verdict.message) is not taken


def test_a_privileged_container_beside_a_card_is_denied() -> None:
    privileged = container(name="s", securityContext={"privileged": True})

    verdict = mutate(pod(container({GPU: 1}), privileged), rules())
    assert (verdict.allowed, verdict.code) == (False, 403)
    assert verdict.message == "container s is privileged"
    assert mutate(pod(container(), privileged), rules()).allowed


def test_a_pod_that_names_its_node_is_denied() -> None:
    placed = pod(container({GPU: 1}), nodeName="n")

    assert mutate(placed, rules()).message == "pod has node assigned"
    assert mutate(placed, rules(scheduler_name="")).allowed


def env_of(after: dict[str, Any], index: int = 0) -> list[dict[str, str]]:
    return after["spec"]["containers"][index].get("env", [])


def test_a_priority_becomes_an_env_also_without_a_card() -> None:
    given_ = pod(container({"nvidia.com/priority": 1}))

    assert env_of(patched(given_, mutate(given_, rules()))) == [
        {"name": "CUDA_TASK_PRIORITY", "value": "1"}
    ]


def test_a_core_policy_goes_into_every_container_and_wins() -> None:
    own = {"name": "GPU_CORE_UTILIZATION_POLICY", "value": "disable"}
    given_ = pod(container(), container(env=[own]))
    after = patched(given_, mutate(given_, rules(gpu_core_policy="force")))

    for index in (0, 1):
        assert env_of(after, index) == [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"}]


def test_overwrite_env_hides_cards_from_containers_without_one() -> None:
    given_ = pod(container({GPU: 1}), container())
    after = patched(given_, mutate(given_, rules(overwrite_env=True)))

    assert env_of(after) == []
    assert env_of(after, 1) == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]


def test_a_runtime_class_is_set_where_there_is_none() -> None:
    config = rules(runtime_class_name="nvidia")
    given_ = pod(container({GPU: 1}))
    assert patched(given_, mutate(given_, config))["spec"]["runtimeClassName"] == "nvidia"

    own = pod(container({GPU: 1}), runtimeClassName="own")
    assert patched(own, mutate(own, config))["spec"]["runtimeClassName"] == "own"
    without = pod(container())
    assert "runtimeClassName" not in patched(without, mutate(without, config))["spec"]


def test_init_containers_are_filled_in_too() -> None:
    given_ = pod(container(), initContainers=[container({GPU: 1})])
    after = patched(given_, mutate(given_, rules()))

    assert after["spec"]["initContainers"][0]["resources"]["limits"][CORES] == "100"


amounts = st.sampled_from((0, 1, "2", 50, 100, "1k", "0.5", -1))
limits_ = st.dictionaries(
    st.sampled_from((GPU, MEM, PCT, CORES, "nvidia.com/priority", "cpu")), amounts, max_size=4
)


@settings(max_examples=100)
@given(st.lists(limits_, min_size=1, max_size=3), st.booleans())
def test_admission_twice_changes_nothing_more(limits, odd_config) -> None:
    config = {"overwrite_env": True, "gpu_core_policy": "force", "runtime_class_name": "r"}
    installed = rules(**config) if odd_config else rules()
    given_ = pod(*(container(dict(each)) for each in limits))
    verdict = mutate(given_, installed, AdmissionCircumstances(traceparent="t"))
    if verdict.allowed:
        after = patched(given_, verdict)
        assert mutate(after, installed, AdmissionCircumstances(traceparent="t")).patch == []


def canonical(given_: dict[str, Any]) -> dict[str, Any]:
    """Without the side effects of HAMi's typed round trip: an empty status, amounts as texts."""
    after = deepcopy(given_)
    after.pop("status", None)
    for each in (*after["spec"].get("initContainers", ()), *after["spec"]["containers"]):
        for part in (each.get("resources") or {}).values():
            part.update({name: str(value) for name, value in part.items()})
    return after


_NO_CARD = '"nvidia.com/gpu": "0"'


def test_nvidia_pods_are_admitted_as_hami_was_recorded_to() -> None:
    for line in recorded.lines("admission.jsonl"):
        if "nvidia" not in str(line) or "16Gi" in line["name"] or _NO_CARD in line["name"]:
            # HAMi admits 16Gi of gpumem and then drops the request; we deny it. Of a pod that asks
            # for 0 cards it asks for all cores of them.
            continue
        verdict = mutate(line["pod"], rules())
        assert verdict.allowed == line["allowed"], line["name"]
        assert verdict.code == line["status"]["code"], line["name"]
        assert verdict.message == line["status"].get("message", ""), line["name"]
        theirs = jsonpatch.apply_patch(deepcopy(line["pod"]), line["patch"])
        ours = jsonpatch.apply_patch(deepcopy(line["pod"]), verdict.patch)
        assert canonical(ours) == canonical(theirs), line["name"]


def test_ephemeral_containers_ask_for_nothing_and_are_left_alone() -> None:
    debugging = {"name": "d", "image": "x", "securityContext": {"privileged": True}}
    given_ = pod(container({GPU: 1, MEM: 5}), ephemeralContainers=[debugging])

    assert mutate(given_, rules(overwrite_env=True)).patch == [SET_SCHEDULER]


def test_a_native_sidecar_is_filled_in_like_any_container() -> None:
    sidecar = container({GPU: 1}, name="s", restartPolicy="Always")
    given_ = pod(container(), initContainers=[sidecar])
    after = patched(given_, mutate(given_, rules()))

    assert after["spec"]["initContainers"][0]["resources"]["limits"][CORES] == "100"


def test_an_amount_of_the_same_value_keeps_its_spelling_and_requests_follow_limits() -> None:
    vendors = Vendors.from_config(DeviceConfig(), enable_ascend=True, enable_iluvatar=True)
    installed = AdmissionRules(vendors=vendors, scheduler_name="hami-scheduler")
    vcore = {"iluvatar.ai/MR-V100-vgpu": "1k", "iluvatar.ai/MR-V100.vCore": "100k"}
    assert mutate(pod(container(vcore)), installed).patch[-1] == SET_SCHEDULER

    chip = {"huawei.com/Ascend910C": "1"}
    given_ = pod(container(resources={"limits": dict(chip), "requests": dict(chip)}))
    resources = patched(given_, mutate(given_, installed))["spec"]["containers"][0]["resources"]
    assert resources["limits"]["huawei.com/Ascend910C"] == "2"
    assert resources["requests"]["huawei.com/Ascend910C"] == "2"
