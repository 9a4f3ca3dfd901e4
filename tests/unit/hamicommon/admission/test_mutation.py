"""The webhook's answers, decision by decision (protocol 3 and 1.1)."""

from copy import deepcopy
from typing import Any

import jsonpatch
import pytest
from hamicommon.admission.mutation import mutate
from hamicommon.admission.tampering.guard import Guard
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
    apply_verdict,
    container,
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
    after = apply_verdict(given_, mutate(given_, rules()))

    assert after["spec"]["containers"][0]["resources"]["limits"] == limits | added
    assert after["spec"]["schedulerName"] == "hami-scheduler"


def test_the_patch_holds_only_what_changed() -> None:
    assert mutate(pod(container({GPU: 1, MEM: 5})), rules()).patch == [SET_SCHEDULER]


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

    assert env_of(apply_verdict(given_, mutate(given_, rules()))) == [
        {"name": "CUDA_TASK_PRIORITY", "value": "1"}
    ]


def test_a_core_policy_goes_into_every_container_and_wins() -> None:
    own = {"name": "GPU_CORE_UTILIZATION_POLICY", "value": "disable"}
    given_ = pod(container(), container(env=[own]))
    after = apply_verdict(given_, mutate(given_, rules(gpu_core_policy="force")))

    for index in (0, 1):
        assert env_of(after, index) == [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"}]


def test_overwrite_env_hides_cards_from_containers_without_one() -> None:
    given_ = pod(container({GPU: 1}), container())
    after = apply_verdict(given_, mutate(given_, rules(overwrite_env=True)))

    assert env_of(after) == []
    assert env_of(after, 1) == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]


def test_a_runtime_class_is_set_where_there_is_none() -> None:
    config = rules(runtime_class_name="nvidia")
    given_ = pod(container({GPU: 1}))
    assert apply_verdict(given_, mutate(given_, config))["spec"]["runtimeClassName"] == "nvidia"

    own = pod(container({GPU: 1}), runtimeClassName="own")
    assert apply_verdict(own, mutate(own, config))["spec"]["runtimeClassName"] == "own"
    without = pod(container())
    assert "runtimeClassName" not in apply_verdict(without, mutate(without, config))["spec"]


@pytest.mark.parametrize("sidecar", [{}, {"restartPolicy": "Always"}])
def test_init_containers_are_filled_in_too(sidecar: dict[str, str]) -> None:
    given_ = pod(container(), initContainers=[container({GPU: 1}, **sidecar)])

    after = apply_verdict(given_, mutate(given_, rules()))

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
        after = apply_verdict(given_, verdict)
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


def test_an_amount_of_the_same_value_keeps_its_spelling_and_requests_follow_limits() -> None:
    vendors = Vendors.from_config(DeviceConfig(), enable_ascend=True, enable_iluvatar=True)
    installed = AdmissionRules(vendors=vendors, scheduler_name="hami-scheduler")
    vcore = {"iluvatar.ai/MR-V100-vgpu": "1k", "iluvatar.ai/MR-V100.vCore": "100k"}
    assert mutate(pod(container(vcore)), installed).patch[-1] == SET_SCHEDULER

    chip = {"huawei.com/Ascend910C": "1"}
    given_ = pod(container(resources={"limits": dict(chip), "requests": dict(chip)}))
    resources = apply_verdict(given_, mutate(given_, installed))["spec"]["containers"][0][
        "resources"
    ]
    assert resources["limits"]["huawei.com/Ascend910C"] == "2"
    assert resources["requests"]["huawei.com/Ascend910C"] == "2"


# --- pods that ask for no card (protocol 3 and 1.1)


NOTHING = ["0", 0, "0.0", "0k", "-0"]


@pytest.mark.parametrize("amount", NOTHING)
@pytest.mark.parametrize("part", ["initContainers", "containers"])
def test_a_pod_that_asks_for_no_card_is_left_alone(amount: object, part: str) -> None:
    given_ = pod(container(), **{part: [container({GPU: amount}), container({MEM: 0, GPU: "0"})]})
    given_["spec"]["containers"] = given_["spec"].get("containers") or [container()]

    verdict = mutate(given_, rules())

    assert (verdict.patch, verdict.reason, verdict.warnings) == ([], "no-cards", ())


@pytest.mark.parametrize("limits", [{GPU: "0", MEM: "4000"}, {"nvidia.com/priority": "1"}])
def test_a_pod_of_no_card_with_other_amounts_is_scheduled_by_us(limits: dict[str, Any]) -> None:
    """Other schedulers look for these amounts on the nodes, and find none for ever."""
    given_ = pod(container(limits), nodeName="")

    after = apply_verdict(given_, verdict := mutate(given_, rules()))

    assert after["spec"]["schedulerName"] == "hami-scheduler"
    assert after["spec"]["containers"][0]["resources"]["limits"] == limits
    assert verdict.reason == "no-cards"
    assert mutate(after, rules()).patch == []


def test_no_card_of_many_keeps_a_container_that_sees_none() -> None:
    """A pod with 0 cards must not get all of them by an image whose variable is `all`."""
    given_ = pod(container({GPU: "0"}))

    after = apply_verdict(given_, mutate(given_, rules(overwrite_env=True)))

    assert after["spec"]["containers"][0]["env"] == [
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}
    ]


REFUSE_ZERO = ("AWSNeuron", "Enflame", "Mthreads")
"""Vendors that refuse a count of zero, as HAMi does, with a sentence."""


@pytest.mark.parametrize(
    "name", [v.resources.count for v in EVERY_VENDOR if v.name not in REFUSE_ZERO]
)
def test_a_count_of_zero_is_no_card_of_any_vendor(name: str) -> None:
    served = AdmissionRules(vendors=EVERY_VENDOR, scheduler_name="hami-scheduler")
    for amount in NOTHING:
        before = {"limits": {name: amount}, "requests": {name: amount}}

        verdict = mutate(given_ := pod(container(resources=before)), served)

        assert verdict.reason == "no-cards", amount
        after = apply_verdict(given_, verdict)
        assert after["spec"]["containers"][0]["resources"] == before
        assert "schedulerName" not in after["spec"]


# --- the annotations that admission writes and drops: the trace, the creator, the scheduler's own


def test_annotations_of_the_scheduler_are_dropped_and_the_users_are_kept() -> None:
    given_ = pod(container({GPU: 1}))
    given_["metadata"]["annotations"] = {
        "hami.io/vgpu-node": "n",
        "hami.io/grant": "forged",
        "hami.io/vgpu-devices-allocated": "GPU-x,NVIDIA,1,1:;",
        "nvidia.com/use-gputype": "A100",
    }

    after = apply_verdict(given_, mutate(given_, rules()))
    assert after["metadata"]["annotations"] == {"nvidia.com/use-gputype": "A100"}


def test_the_trace_is_stamped_over_a_users_value_and_only_on_pods_with_cards() -> None:
    given_ = pod(container({GPU: 1}))
    after = apply_verdict(
        given_, mutate(given_, rules(), AdmissionCircumstances(traceparent="00-a-b-01"))
    )
    assert after["metadata"]["annotations"] == {"hami.io/traceparent": "00-a-b-01"}

    again = apply_verdict(
        after, mutate(after, rules(), AdmissionCircumstances(traceparent="00-c-d-01"))
    )
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

    after = apply_verdict(given_, mutate(given_, rules(), about))

    wanted = {"hami.io/traceparent": "00-a-b-01"} | ({CREATOR: username} if username else {})
    kept = {"mine": "1"} if annotations and "mine" in annotations else {}
    assert after["metadata"]["annotations"] == wanted | kept
    assert mutate(after, rules(), about).patch == []


def test_a_pod_without_cards_names_no_creator() -> None:
    given_ = pod(container())
    given_["metadata"]["annotations"] = {CREATOR: "root"}

    after = apply_verdict(given_, mutate(given_, rules(), AdmissionCircumstances(username="alice")))

    assert CREATOR not in after["metadata"]["annotations"]


def test_the_name_of_a_creator_is_bounded() -> None:
    given_ = pod(container({GPU: 1}))
    about = AdmissionCircumstances(username="a\n" * 5000)

    after = apply_verdict(given_, mutate(given_, rules(), about))

    assert len(after["metadata"]["annotations"][CREATOR]) <= 256
    assert after["metadata"]["annotations"][CREATOR].isprintable()


# --- pods whose containers have whole cards only may ask to run without libvgpu


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
    assert verdict.message == f"annotation hami.io/preload is '{value}': expected true or false"


def test_a_misspelt_annotation_is_warned_of() -> None:
    given = asking([{GPU: 1}])
    given["metadata"]["annotations"] = {"hami.io/preloads": "false"}

    assert any("hami.io/preload" in warning for warning in mutate(given, rules()).warnings)
