"""Mistakes of people and broken neighbours: one clear sentence each, nothing lost."""

import httpx
import pytest

from tests.e2e.system import System, a_pod, slice_of, wait
from tests.waiting import PATIENCE_S


@pytest.mark.parametrize(
    ("body", "error"),
    [
        pytest.param(b"", "EOF", id="empty"),
        pytest.param(b"{", "", id="cut off"),
        pytest.param(b"[]", "", id="not an object"),
        pytest.param(b"{}", "extender args missing pod", id="no pod"),
        pytest.param(b'{"Pod": 7, "NodeNames": ["node-0"]}', "", id="pod is a number"),
        pytest.param(b'{"Pod": {"metadata": {}}, "NodeNames": "x"}', "", id="names are a string"),
    ],
)
def test_malformed_extender_arguments_are_answered_inside_the_result(
    system: System, body: bytes, error: str
) -> None:
    answer = httpx.post(f"{system.scheduler_url}/filter", content=body, timeout=PATIENCE_S)

    assert answer.status_code == 200
    assert error in answer.json()["Error"]
    assert answer.json()["Error"]
    assert "Traceback" not in answer.text


def test_binding_an_unknown_pod_is_refused_with_its_name(system: System) -> None:
    answer = httpx.post(
        f"{system.scheduler_url}/bind",
        json={"PodName": "ghost", "PodNamespace": "default", "PodUID": "u", "Node": "node-0"},
        timeout=PATIENCE_S,
    )

    assert answer.status_code == 200
    assert "ghost" in answer.json()["Error"]


@pytest.mark.parametrize(
    ("limits", "named"),
    [
        pytest.param({"nvidia.com/gpu": -1}, "nvidia.com/gpu", id="negative count"),
        pytest.param({"nvidia.com/gpu": "0.5"}, "nvidia.com/gpu", id="fractional count"),
        pytest.param(
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem": "1500m"}, "gpumem", id="fractional memory"
        ),
        pytest.param(
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 150}, "percentage", id="percent"
        ),
    ],
)
def test_a_wrong_amount_is_refused_at_once_and_named(
    system: System, limits: dict[str, object], named: str
) -> None:
    answer = system.create(a_pod("wrong", limits))

    assert answer.status_code in (403, 422, 400, 500), answer.text
    assert named in answer.json()["message"]
    assert system.pod("wrong") is None


def test_an_unknown_vendors_resource_is_left_to_kube_scheduler(system: System) -> None:
    answer = system.create(a_pod("other", {"example.com/tpu": 1}))

    assert answer.status_code == 201
    created = answer.json()
    assert created["spec"]["schedulerName"] == "default-scheduler"
    assert system.sql("SELECT count(*) FROM allocations WHERE ended_at IS NULL") == "0"


def test_a_broken_node_annotation_stops_nobody(system: System) -> None:
    path = "/api/v1/nodes/node-1"
    before = system.get(path)["metadata"]["annotations"]["hami.io/node-nvidia-register"]
    answer = system.api.patch(
        path,
        json={"metadata": {"annotations": {"hami.io/node-nvidia-register": "[{{{"}}},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    assert answer.status_code == 200

    system.run(a_pod("fine", slice_of(1000)))

    system.api.patch(
        path,
        json={"metadata": {"annotations": {"hami.io/node-nvidia-register": before}}},
        headers={"Content-Type": "application/merge-patch+json"},
    )


def test_annotations_of_a_user_never_make_an_allocation(system: System) -> None:
    forged = {
        "hami.io/vgpu-node": "node-0",
        "hami.io/vgpu-devices-allocated": "GPU-x,NVIDIA,80000,100:;",
        "hami.io/bind-phase": "success",
        "hami.io/grant": "e30.e30",
    }
    answer = system.create(a_pod("forger", slice_of(100_000), annotations=forged))
    assert answer.status_code == 201

    kept = answer.json()["metadata"].get("annotations") or {}
    assert not set(forged) & set(kept)
    system.wait_for_reason("forger")
    assert system.sql("SELECT count(*) FROM allocations WHERE ended_at IS NULL") == "0"


def test_a_pod_bound_past_us_gets_no_card(system: System) -> None:
    pod = a_pod("bypass", slice_of(1000))
    pod["spec"] |= {"nodeName": "node-0", "schedulerName": "somebody-else"}
    assert system.create(pod).status_code == 201

    def messages() -> list[str]:
        return [text for _, text in system.events("bypass") if "schedulerName" in text]

    [message, *_] = wait(messages, "an event that names the way out")
    assert "recreate the pod" in message
    statuses = system.get("/api/v1/namespaces/default/pods/bypass")["status"]["containerStatuses"]
    assert not any("running" in each["state"] for each in statuses)


SLEEP = ("sleep", "300")


@pytest.mark.parametrize(
    ("name", "limits", "ours"),
    [
        pytest.param("zero", {"nvidia.com/gpu": "0"}, False, id="a chart's default"),
        pytest.param("zero-mem", {"nvidia.com/gpu": 0, "nvidia.com/gpumem": 4000}, True, id="mem"),
        pytest.param("priority", {"nvidia.com/priority": 1}, True, id="a priority alone"),
    ],
)
def test_a_pod_that_asks_for_no_card_runs(
    system: System, name: str, limits: dict[str, object], ours: bool
) -> None:
    [running] = system.run(a_pod(name, limits, command=SLEEP))

    scheduler = "hami-scheduler" if ours else "default-scheduler"
    assert running["spec"]["schedulerName"] == scheduler
    assert "nvidia.com/gpucores" not in running["spec"]["containers"][0]["resources"]["limits"]
    assert "hami.io/grant" not in (running["metadata"].get("annotations") or {})
    assert system.sql("SELECT count(*) FROM allocations WHERE ended_at IS NULL") == "0"


def test_a_pod_of_ours_that_asks_for_no_card_runs(system: System) -> None:
    """A chart that names our scheduler, or an earlier version's admission, makes such a pod."""
    pod = a_pod("named", {"nvidia.com/gpu": "0", "nvidia.com/gpucores": "100"}, command=SLEEP)
    pod["spec"]["schedulerName"] = "hami-scheduler"

    system.run(pod)
