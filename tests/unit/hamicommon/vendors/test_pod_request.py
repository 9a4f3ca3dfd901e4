"""From a pod's JSON to what the engine decides on."""

from typing import Any

import pytest
from hamicommon.device_config import DeviceConfig
from hamicommon.domain.requests import Policy, ScoreWeights
from hamicommon.errors import InvalidRequest
from hamicommon.vendors.pod_request import (
    host_request,
    pod_policy,
    pod_request,
    wants_devices,
)
from hamicommon.vendors.registry import Vendors

VENDORS = Vendors.from_config(DeviceConfig())


def container(name: str, gpus: object = None, **more: Any) -> dict[str, Any]:
    limits = {} if gpus is None else {"nvidia.com/gpu": gpus, "nvidia.com/gpumem": 100}
    return {"name": name, "resources": {"limits": limits}, **more}


def pod(*containers: dict[str, Any], init: Any = (), **annotations: str) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "annotations": annotations},
        "spec": {"containers": list(containers), "initContainers": list(init)},
    }


def test_init_containers_and_sidecars_come_first_in_their_order() -> None:
    request = pod_request(
        pod(
            container("main", 1),
            container("plain"),
            init=[
                container("prepare", 1),
                container("sidecar", 1, restartPolicy="Always"),
                container("load"),
            ],
        ),
        VENDORS,
    )

    assert [(c.name, c.role, len(c.requests)) for c in request.containers] == [
        ("prepare", "init", 1),
        ("sidecar", "sidecar", 1),
        ("load", "init", 0),
        ("main", "app", 1),
        ("plain", "app", 0),
    ]
    assert (request.uid, request.namespace, request.name) == ("u", "ns", "p")


def test_a_bare_pod_asks_for_nothing() -> None:
    request = pod_request({"metadata": {"generateName": "x-"}, "spec": {"containers": []}}, VENDORS)

    assert not request.wants_devices
    assert (request.namespace, request.name, request.selections) == ("default", "x-", {})


def test_the_selection_is_read_for_vendors_that_are_asked() -> None:
    asked = pod(container("c", 1), **{"nvidia.com/use-gputype": "A100, V100"})

    assert pod_request(asked, VENDORS).selections["NVIDIA"].use_types == ("A100", "V100")


@pytest.mark.parametrize(
    ("gpus", "wants"),
    [(None, False), ("0", False), (1, True), ("-1", True), ("some", True), ("0.5", True)],
)
def test_a_pod_wants_devices_also_when_it_asks_in_a_malformed_way(gpus, wants) -> None:
    assert wants_devices(pod(container("a"), container("b", gpus)), VENDORS) is wants


def test_policies_come_from_annotations_or_from_the_defaults() -> None:
    defaults = Policy(node="spread", gpu=("binpack",), weights=ScoreWeights(slot=2))
    assert pod_policy({}, defaults) == defaults

    chosen = pod_policy(
        {
            "hami.io/node-scheduler-policy": "odd",
            "hami.io/gpu-scheduler-policy": "numa, spread,",
            "hami.io/device-scoring-weights": " memory=3, slot=0 ,core = 1",
        },
        defaults,
    )
    assert chosen == Policy(
        node="binpack", gpu=("numa", "spread", ""), weights=ScoreWeights(slot=0, core=1, memory=3)
    )


def test_a_list_of_one_policy_stays_a_list() -> None:
    """HAMi orders cards of `binpack,` as a chain, whose ties go by index."""
    assert pod_policy({"hami.io/gpu-scheduler-policy": " binpack,"}).gpu == ("binpack", "")
    assert pod_policy({"hami.io/gpu-scheduler-policy": " "}).gpu == ("spread",)


def test_numa_bind_orders_the_cards_of_every_vendor() -> None:
    assert pod_policy({"nvidia.com/numa-bind": "true"}).numa_first
    assert not pod_policy({"nvidia.com/numa-bind": "yes"}).numa_first


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hami.io/device-scoring-weights", "slot=0"),
        ("hami.io/preemption-delay-seconds", "soon"),
        ("hami.io/preemption-delay-seconds", "-1"),
        ("hami.io/group-min", "all"),
        ("hami.io/group-min", "0"),
        ("hami.io/group-min", "1001"),
    ],
)
def test_a_wrong_annotation_is_no_matter_for_a_pod_without_a_card(name: str, text: str) -> None:
    wrong = {name: text}
    assert not pod_request(pod(container("a"), **wrong), VENDORS).wants_devices
    with pytest.raises(InvalidRequest, match=f"{name} is '{text}'"):
        pod_request(pod(container("a", 1), **wrong), VENDORS)


@pytest.mark.parametrize(
    "text",
    ["", "slot=1", "slot=1,core=1", "slot=0,core=0,memory=0", "slot=1,core=1,memory=-1",
     "slot=1,core=1,memory=1,slot=1", "slot=1,core=1,memory=x", "slot=1,core=1,memory=1.5",
     "slot=1,core=1,other=1", "slot=1,core=1,memory=99999999999"],
)  # fmt: skip
def test_malformed_weights_are_refused_with_what_would_be_right(text) -> None:
    with pytest.raises(InvalidRequest, match="for example slot=1,core=1,memory=1"):
        pod_policy({"hami.io/device-scoring-weights": text})


def test_a_malformed_amount_refuses_the_pod_and_names_the_place() -> None:
    with pytest.raises(
        InvalidRequest, match=r"container 'b': nvidia.com/gpu is -1: expected a whole"
    ):
        pod_request(pod(container("a", 1), container("b", "-1")), VENDORS)


@pytest.mark.parametrize(
    ("init", "cpu_milli", "memory_mib"),
    [
        pytest.param(["6 sidecar", "12"], 18_000, 18, id="an init container after a sidecar"),
        pytest.param(["12", "6 sidecar"], 12_000, 12, id="an init container before a sidecar"),
        pytest.param(["6 sidecar", "1"], 9000, 9, id="the containers are more"),
        pytest.param(["1 sidecar", "5", "2 sidecar", "4"], 7000, 7, id="the last of several"),
    ],
)
def test_the_host_is_asked_for_what_runs_at_the_same_time(
    init: list[str], cpu_milli: int, memory_mib: int
) -> None:
    def make_container(text: str, name: str) -> dict[str, Any]:
        amount, _, sidecar = text.partition(" ")
        more = {"restartPolicy": "Always"} if sidecar else {}
        return {
            "name": name,
            "resources": {"requests": {"cpu": amount, "memory": f"{amount}Mi"}},
            **more,
        }

    host = host_request(
        pod(
            make_container("3", "main"),
            init=[make_container(each, f"i{n}") for n, each in enumerate(init)],
        )
    )

    assert (host.cpu_milli, host.memory_mib) == (cpu_milli, memory_mib)
