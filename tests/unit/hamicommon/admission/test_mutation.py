"""What the webhook answers, decision by decision (protocol 3 and 1.1)."""

from copy import deepcopy
from typing import Any

import jsonpatch
import pytest
from hamicommon.admission.mutation import MOST_WARNINGS, mutate
from hamicommon.admission.verdicts import AdmissionCircumstances, AdmissionResult, AdmissionRules
from hamicommon.device_config import DeviceConfig
from hamicommon.vendors.registry import Vendors
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.hamicommon import recorded
from tests.unit.hamicommon.admission.pods import (
    CORES,
    EVERY_VENDOR,
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


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({GPU: 1, MEM: "16Gi"}, "nvidia.com/gpumem is 16Gi: a whole number of MiB"),
        ({GPU: -1}, "nvidia.com/gpu is -1: a whole number of cards"),
        ({GPU: "0.5"}, "nvidia.com/gpu is 0.5"),
        ({GPU: 1, PCT: 101}, "nvidia.com/gpumem-percentage is 101: a whole number from 1 to 100"),
        ({PCT: -1}, "nvidia.com/gpumem-percentage is -1"),
        ({GPU: 1, CORES: "x"}, "nvidia.com/gpucores is x, which is no quantity"),
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
    assert "is taken as 100" in verdict.warnings[1]


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
    ["", "slot=1", "slot=0,core=0,memory=0", "slot=-1,core=1,memory=1", "slot=a,core=1,memory=1"],
)
def test_malformed_weights_are_refused_with_what_would_be_right(weights: str) -> None:
    given_ = pod(container({GPU: 1}))
    given_["metadata"]["annotations"] = {"hami.io/device-scoring-weights": weights}

    verdict = mutate(given_, rules())

    assert (verdict.allowed, verdict.code) == (False, 422)
    assert verdict.reason == "malformed-annotation"
    assert verdict.message == (
        f"annotation hami.io/device-scoring-weights is '{weights}': each of slot, core and memory "
        "once, with a whole number, not all 0, is wanted, for example slot=1,core=1,memory=1"
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

    assert len(warnings) <= MOST_WARNINGS + 1
    assert all(len(text) <= 1024 and text.isprintable() for text in warnings)


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


def test_annotations_of_the_scheduler_are_dropped_and_the_users_are_kept() -> None:
    given_ = pod(container({GPU: 1}))
    given_["metadata"]["annotations"] = {
        "hami.io/vgpu-node": "n",
        "hami.io/grant": "forged",
        "hami.io/vgpu-devices-allocated": "GPU-x,NVIDIA,1,1:;",
        "nvidia.com/use-gputype": "A100",
    }

    after = patched(given_, mutate(given_, rules()))
    assert after["metadata"]["annotations"] == {"nvidia.com/use-gputype": "A100"}


def test_the_trace_is_stamped_over_a_users_value_and_only_on_pods_with_cards() -> None:
    given_ = pod(container({GPU: 1}))
    after = patched(
        given_, mutate(given_, rules(), AdmissionCircumstances(traceparent="00-a-b-01"))
    )
    assert after["metadata"]["annotations"] == {"hami.io/traceparent": "00-a-b-01"}

    again = patched(after, mutate(after, rules(), AdmissionCircumstances(traceparent="00-c-d-01")))
    assert again["metadata"]["annotations"] == {"hami.io/traceparent": "00-c-d-01"}
    assert (
        mutate(pod(container()), rules(), AdmissionCircumstances(traceparent="00-a-b-01")).patch
        == []
    )


CREATOR = "hami.io/created-by"


@pytest.mark.parametrize(
    "annotations",
    [None, {}, {CREATOR: "root"}, {CREATOR: "root", "mine": "1"}, {"hami.io/traceparent": "x"}],
)
@pytest.mark.parametrize("username", ["alice", "system:serviceaccount:ns:bot", ""])
def test_the_creator_is_whom_the_api_server_names_whatever_the_author_wrote(
    annotations: dict[str, str] | None, username: str
) -> None:
    given_ = pod(container({GPU: 1}))
    if annotations is not None:
        given_["metadata"]["annotations"] = dict(annotations)
    about = AdmissionCircumstances(traceparent="00-a-b-01", username=username)

    after = patched(given_, mutate(given_, rules(), about))

    wanted = {"hami.io/traceparent": "00-a-b-01"} | ({CREATOR: username} if username else {})
    kept = {"mine": "1"} if annotations and "mine" in annotations else {}
    assert after["metadata"]["annotations"] == wanted | kept
    assert mutate(after, rules(), about).patch == []


def test_a_pod_without_cards_names_no_creator() -> None:
    given_ = pod(container())
    given_["metadata"]["annotations"] = {CREATOR: "root"}

    after = patched(given_, mutate(given_, rules(), AdmissionCircumstances(username="alice")))

    assert CREATOR not in after["metadata"]["annotations"]


def test_the_name_of_a_creator_is_bounded() -> None:
    given_ = pod(container({GPU: 1}))
    about = AdmissionCircumstances(username="a\n" * 5000)

    after = patched(given_, mutate(given_, rules(), about))

    assert len(after["metadata"]["annotations"][CREATOR]) <= 256
    assert after["metadata"]["annotations"][CREATOR].isprintable()


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
