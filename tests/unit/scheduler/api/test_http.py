"""Every call of the query API answers our errors with the same statuses and one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI
from hami_scheduler.api.app import operator_routes
from hami_scheduler.api.explain import Explainer, UndecidedPods
from hami_scheduler.api.http import TooLong, answer_errors
from hami_scheduler.bootstrap.simulating import ClusterSimulator, read_view
from hamicommon.device_config import DeviceConfig
from hamicommon.domain.granted_cards import ConditionKind, GrantedCardCondition
from hamicommon.domain.ids import GpuUuid, NodeName, PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.domain.requests import Policy
from hamicommon.errors import (
    Conflict,
    Forbidden,
    HamiError,
    InvalidRequest,
    NotFound,
    Unavailable,
    Unschedulable,
)
from hamicommon.explain.answer import Explanation
from hamicommon.k8s.types import Json
from hamicommon.ledger.granted_cards import PodCard
from hamicommon.vendors.registry import Vendors

from tests.unit.hamicommon.kueue.workloads import workload
from tests.unit.hamicommon.simulation.objects import asking, every_vendor, gpus, node, placed_pod
from tests.unit.scheduler.ledger.test_cluster_state import Reader

USE_CASES = ("queries", "explainer", "simulated", "adopter", "letters", "undecided")


class Failing:
    """Queries, letters and use cases that all end with one error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def _fail(self, *_: object, **__: object) -> Any:
        raise self._error

    allocations = nodes = devices = history = drift = _fail
    explain = answer = latest = send_again = waiting = __call__ = _fail


async def call(error: Exception, method: str, path: str) -> httpx.Response:
    failing = cast(Any, Failing(error))
    app = FastAPI()
    answer_errors(app)
    service = SimpleNamespace(**dict.fromkeys(USE_CASES, failing))
    app.include_router(operator_routes(cast(Any, service)))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://scheduler") as client:
        return await client.request(method, path, json={} if method == "POST" else None)


CALLS = (
    ("GET", "/v1/allocations"),
    ("GET", "/v1/nodes"),
    ("GET", "/v1/devices"),
    ("GET", "/v1/pods/u/history"),
    ("GET", "/v1/pods/u/explain"),
    ("GET", "/v1/drift"),
    ("GET", "/v1/dead-letters"),
    ("GET", "/v1/undecided-pods"),
    ("POST", "/v1/dead-letters/7/send"),
    ("POST", "/v1/simulate"),
    ("POST", "/v1/adopt"),
)


@pytest.mark.parametrize(("method", "path"), CALLS)
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotFound("there is none"), 404),
        (Conflict("lost a race"), 409),
        (Unavailable("Postgres is away"), 503),
        (Forbidden("the API server refuses"), 503),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_an_error_of_ours_is_a_status_and_a_sentence(
    error: HamiError, status: int, method: str, path: str
) -> None:
    answer = await call(error, method, path)

    assert (answer.status_code, answer.json()) == (status, {"error": str(error)})


async def test_a_body_that_is_wrong_and_one_that_is_too_long_differ() -> None:
    wrong = await call(InvalidRequest("pod: expected a Pod object"), "POST", "/v1/simulate")
    long = await call(TooLong("the body is longer than 5 bytes"), "POST", "/v1/simulate")

    assert (wrong.status_code, long.status_code) == (400, 413)


async def test_a_letter_that_may_not_be_sent_again_is_a_conflict() -> None:
    answer = await call(InvalidRequest("letter 7: no mark"), "POST", "/v1/dead-letters/7/send")

    assert (answer.status_code, answer.json()) == (409, {"error": "letter 7: no mark"})


@pytest.mark.parametrize("error", [Unschedulable({}), ValueError("nobody thought of this")])
async def test_what_no_call_should_end_with_is_an_internal_error(error: Exception) -> None:
    assert (await call(error, "GET", "/v1/nodes")).status_code == 500


# --- `GET /v1/undecided-pods`: pods that wait and never came to /filter


WHY = "0/2 nodes are available: 2 cannot allocate all claims."
GIB = 2**30


def a_pod(name: str, claim: str | None = None, **changes: Any) -> Json:
    """Make a pod that waits for a claim by name, or one of a template not made yet."""
    from_template = {"resourceClaimTemplateName": "a-slice"}
    source = {"resourceClaimName": claim} if claim else from_template
    metadata = {
        "namespace": "default",
        "name": name,
        "uid": f"uid-{name}",
        "creationTimestamp": "2026-11-26T20:00:00Z",
    }
    condition = {"type": "PodScheduled", "status": "False", "message": WHY}
    return {
        "metadata": metadata | changes.pop("metadata", {}),
        "spec": {
            "resourceClaims": [{"name": "card", **source}],
            "containers": [{"name": "c", "resources": {"claims": [{"name": "card"}]}}],
            **changes.pop("spec", {}),
        },
        "status": {"phase": "Pending", "conditions": [condition]} | changes.pop("status", {}),
    }


def a_claim(name: str, device_class: str = "gpu.hami.io", **exactly: Any) -> Json:
    capacity = {"requests": {"memory": "4096Mi", "cores": "30"}}
    wanted = {"deviceClassName": device_class, "capacity": capacity, **exactly}
    return {
        "metadata": {"name": name, "uid": f"uid-of-{name}"},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": wanted}]}},
    }


class Claims:
    def __init__(self, *claims: Json, error: Exception | None = None) -> None:
        self._known = {claim["metadata"]["name"]: claim for claim in claims}
        self._error = error

    async def get(self, _namespace: str, name: str) -> Json:
        if self._error is not None:
            raise self._error
        if name not in self._known:
            raise NotFound(f"resourceclaims {name} not found")
        return self._known[name]


async def waiting(
    pods: list[Json], claims: Claims, query: str = "", workloads: Sequence[Json] = ()
) -> list[Json]:
    app = FastAPI()
    undecided = UndecidedPods(
        pods=lambda: pods,
        claims=cast(Any, claims),
        vendors=every_vendor(),
        scheduler_name="hami-scheduler",
        came="uid-came".__eq__,
        workloads=lambda: workloads,
    )
    service = SimpleNamespace(undecided=undecided)
    app.include_router(operator_routes(cast(Any, service)))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://scheduler") as client:
        answer = await client.get(f"/v1/undecided-pods{query}")
    assert answer.status_code == 200
    items: list[Json] = answer.json()["items"]
    return items


async def test_a_workload_that_holds_its_quota_is_listed_until_it_is_admitted() -> None:
    admitted = {"type": "Admitted", "status": "True"}
    waits, starts = workload("waits"), workload("starts")
    starts["status"]["conditions"].append(admitted)
    waits["status"]["admissionChecks"][1]["message"] = "1 of the 2 pods fit"
    elsewhere = workload("elsewhere", metadata={"namespace": "other"})

    [found] = await waiting([], Claims(), "?namespace=default", [waits, starts, elsewhere])

    assert (found["pod_name"], found["reason_code"]) == ("workload/waits", "AtKueue")
    assert found["summary"] == (
        "at Kueue, quota held since 2026-11-30 12:00:00; fits-as-slices is Pending: 1 of the 2 "
        "pods fit"
    )


async def test_a_pod_is_listed_with_what_it_asks_for_and_kube_schedulers_reason() -> None:
    [found] = await waiting([a_pod("train", "slice")], Claims(a_claim("slice", count=2)))

    assert found == {
        "since_at": "2026-11-26T20:00:00Z",
        "pod_uid": "uid-train",
        "namespace": "default",
        "pod_name": "train",
        "card_count": 2,
        "memory_bytes": 4 * GIB,
        "memory_ratio": None,
        "core_ratio": 0.3,
        "reason_code": "ResourceClaims",
        "summary": f"kube-scheduler: {WHY}",
    }


async def test_what_a_claim_does_not_state_is_unknown_and_not_nothing() -> None:
    claim = a_claim("slice", allocationMode="All")

    [found] = await waiting([a_pod("train", "slice")], Claims(claim))

    assert [found[key] for key in ("card_count", "memory_bytes", "core_ratio")] == [None] * 3


@pytest.mark.parametrize(
    "pod",
    [
        a_pod("other", "network"),
        a_pod("gone", "deleted-claim"),
        a_pod("bound", "slice", spec={"nodeName": "n1"}),
        a_pod("gated", "slice", spec={"schedulingGates": [{"name": "wait"}]}),
        a_pod("over", "slice", status={"phase": "Failed"}),
        a_pod("leaving", "slice", metadata={"deletionTimestamp": "2026-11-26T20:01:00Z"}),
        a_pod("plain", spec={"resourceClaims": []}),
    ],
    ids=lambda pod: pod["metadata"]["name"],
)
async def test_a_pod_that_waits_for_nothing_of_ours_is_not_listed(pod: Json) -> None:
    claims = Claims(a_claim("slice"), a_claim("network", "nic.example.com"))

    assert await waiting([pod], claims) == []


async def test_a_converted_pod_is_listed_before_its_claim_is_made() -> None:
    shape = {"annotations": {"hami.io/claim-shape": "{}"}}
    pod = a_pod("converted", metadata=shape, status={"conditions": []})

    [found] = await waiting([pod], Claims())

    assert found["summary"] == "kube-scheduler has not answered yet"
    assert found["card_count"] is None


async def test_the_oldest_come_first_and_of_one_namespace_if_asked() -> None:
    pods = [
        a_pod("young", "slice", metadata={"creationTimestamp": "2026-11-26T21:00:00Z"}),
        a_pod("old", "slice"),
        a_pod("elsewhere", "slice", metadata={"namespace": "nlp"}),
    ]

    every = await waiting(pods, Claims(a_claim("slice")))
    some = await waiting(pods, Claims(a_claim("slice")), "?namespace=nlp")

    assert [row["pod_name"] for row in every] == ["elsewhere", "old", "young"]
    assert [row["pod_name"] for row in some] == ["elsewhere"]


@pytest.mark.parametrize(
    ("limits", "scheduler_name", "reason_code", "summary"),
    [
        ({"nvidia.com/gpu-mem": "4096"}, "default-scheduler", "MisspeltResource", "nvidia.com/gpu"),
        ({"nvidia.com/gpumem": "4096"}, "default-scheduler", "MisspeltResource", "no card"),
        ({"nvidia.com/gpu": "1"}, "hami-scheduler", "Unschedulable", WHY),
        ({"nvidia.com/gpu": "1"}, "default-scheduler", None, ""),
        ({"cpu": "1"}, "default-scheduler", None, ""),
    ],
)
async def test_a_pod_by_limits_that_never_came_is_listed_with_the_reason(
    limits: Json, scheduler_name: str, reason_code: str | None, summary: str
) -> None:
    containers = [{"name": "c", "resources": {"limits": limits}}]
    spec = {"resourceClaims": [], "containers": containers, "schedulerName": scheduler_name}

    found = await waiting([a_pod(name, spec=spec) for name in ("train", "came")], Claims())

    assert [(row["pod_name"], row["reason_code"]) for row in found] == (
        [("train", reason_code)] if reason_code else []
    )
    assert all(summary in row["summary"] and row["card_count"] is None for row in found)


async def test_where_claims_may_not_be_read_there_are_none_of_ours() -> None:
    claims = Claims(error=Forbidden("may not get resourceclaims"))

    assert await waiting([a_pod("train", "slice")], claims) == []


# --- `POST /v1/simulate`: the engine's answer on the live view, and on nodes that are given


async def ask(reader: Reader, body: object, **closed: frozenset[NodeName]) -> tuple[int, Any]:
    view = await read_view(reader, every_vendor())
    simulator = ClusterSimulator(
        live=lambda: view, vendors=every_vendor(), defaults=Policy(), closed=closed
    )

    async def simulate(text: bytes) -> bytes:
        return simulator.answer(text)

    app = FastAPI()
    answer_errors(app)
    app.include_router(operator_routes(cast(Any, SimpleNamespace(simulated=simulate))))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://scheduler") as client:
        content = body if isinstance(body, bytes) else None
        answer = await client.post(
            "/v1/simulate", content=content, json=None if content is not None else body
        )
    return answer.status_code, answer.json()


def ledger(nodes: int) -> Reader:
    """Make nodes n000... with one card each, later ones with more memory granted."""
    reader = Reader()
    for number in range(nodes):
        reader.put(f"GPU-{number}", node=f"n{number:03}")
        reader.use(f"GPU-{number}", number)
    return reader


async def test_the_live_cluster_is_asked_and_nothing_is_taken() -> None:
    reader = ledger(3)
    body = {"pod": asking(gpus(1, 500))}
    status, answer = await ask(reader, body)

    assert status == 200
    assert answer["chosen"] == "n002"
    assert answer["nodes"].keys() == {"n000", "n001", "n002"}
    assert [card.version for card in reader.rows.values()] == [2, 2, 2]


async def test_of_closed_nodes_no_slice_is_counted() -> None:
    body = {"pod": asking(gpus(1, 500)), "count": 100}
    n1 = frozenset({NodeName("n001")})
    _, every = await ask(ledger(3), body)
    status, answer = await ask(ledger(3), body, cordoned=n1, silent=frozenset())

    assert (status, answer["closed"]) == (200, {"cordoned": 1})
    assert answer["nodes"] == {node: n for node, n in every["nodes"].items() if node not in n1}
    assert answer["count"] == sum(answer["nodes"].values())
    assert every["closed"] == {}


async def test_more_nodes_than_are_asked_at_once_have_one_winner() -> None:
    status, answer = await ask(ledger(450), {"pod": asking(gpus(1, 500))})
    assert (status, answer["chosen"], len(answer["nodes"])) == (200, "n449", 450)


async def test_given_nodes_are_asked_in_place_of_the_live_ones() -> None:
    body = {
        "pod": asking(gpus(1, 7000)),
        "nodes": [node("a", {}), node("b", {})],
        "pods": [placed_pod("GPU-a-0,NVIDIA,2000,0:;", on="a")],
    }
    status, answer = await ask(ledger(1), body)
    assert status == 200
    assert answer["chosen"] == "b"
    assert answer["nodes"]["a"] == {"fits": False, "reason": "1/1 CardInsufficientMemory"}


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        pytest.param(b"{", "the body is not JSON", id="no JSON"),
        pytest.param([], "expected {", id="a list"),
        pytest.param({"pod": 3}, "pod: expected a Pod object", id="no pod"),
        pytest.param({"pod": {}, "nodes": [3]}, "nodes: expected a list", id="no nodes"),
        pytest.param({"pod": {}, "nodes": [{}]}, "metadata.name", id="a nameless node"),
        pytest.param({"pod": {"spec": {"containers": 3}}}, "containers is 3", id="no list"),
        pytest.param({"pod": {"spec": {}}}, "the pod has no containers", id="no containers"),
    ],
)
async def test_mistakes_are_refused_with_what_is_wrong(body: object, sentence: str) -> None:
    status, answer = await ask(ledger(1), body)
    assert status == 400
    assert sentence in answer["error"]


# --- why a pod is where it is, of pods that no decision of ours is recorded about


class Ledger:
    """One pod's grants, and no decision."""

    def __init__(self, *attempts: dict[str, Any]) -> None:
        self.attempts = list(attempts)

    async def decisions(self, pod_uid: str) -> list[Any]:
        del pod_uid
        return []

    async def allocations(self, *, pod_uid: str) -> list[dict[str, Any]]:
        del pod_uid
        return self.attempts

    async def limits(self, pod_uid: str) -> list[Any]:
        del pod_uid
        return []

    async def wanted_nodes(self, pod_uid: str) -> list[str]:
        del pod_uid
        return []

    async def pod_cards(self, *, pod_uid: str, silent: Any) -> list[PodCard]:
        kind = ConditionKind.NODE_SILENT if silent else ConditionKind.CORDONED
        return [
            PodCard(
                pod=PodRef(uid=PodUid(pod_uid), namespace="ns", name="p"),
                container="main",
                uuid=GpuUuid("GPU-a"),
                condition=GrantedCardCondition(kind=kind, sentence="it is so", advice="Do this"),
            )
        ]


class Gone:
    async def get(self, namespace: str, name: str) -> Any:
        raise NotFound(f"pod {namespace}/{name}")


class Waits:
    """A pod with an unserved resource, so usually of another scheduler."""

    def __init__(self, scheduler_name: str = "") -> None:
        self._scheduler_name = scheduler_name

    async def get(self, namespace: str, name: str) -> Any:
        limits = {"nvidia.com/gpumemory": "4096"}
        return {
            "metadata": {"namespace": namespace, "name": name, "uid": "u"},
            "spec": {
                "schedulerName": self._scheduler_name,
                "containers": [{"name": "cuda", "resources": {"limits": limits}}],
            },
        }


async def explain_pod(
    *attempts: dict[str, Any],
    pods: object = None,
    namespace: str = "",
    name: str = "",
    silent: frozenset[NodeName] = frozenset(),
) -> Explanation:
    explainer = Explainer(
        queries=cast(Any, Ledger(*attempts)),
        pods=cast(Any, pods or Gone()),
        known_pods={},
        vendors=Vendors.from_config(DeviceConfig()),
        scheduler_name="hami-scheduler",
        recorder=cast(Any, SimpleNamespace(dropped=0, waiting=0)),
        new_view=cast(Any, None),
        silent=lambda: silent,
        cordoned=lambda: frozenset({NodeName("n7")}),
    )
    return await explainer.explain(PodUid("u"), namespace, name)


def a_grant(origin: str) -> dict[str, Any]:
    return {
        "namespace": "ns",
        "pod_name": "p",
        "state": "allocated",
        "origin": origin,
        "ended_at": "2026-11-20T10:00:00Z",
    }


async def test_a_pod_that_kube_scheduler_placed_by_its_claims_has_that_as_its_reason() -> None:
    answer = await explain_pod(a_grant("claim"))

    assert (answer.outcome, answer.namespace, answer.pod_name) == ("undecided", "ns", "p")
    assert answer.summary == (
        "kube-scheduler allocated its ResourceClaims, and the ledger granted them when its node "
        "prepared them (allocated)"
    )
    assert list(answer.attempts) == [a_grant("claim")]


@pytest.mark.parametrize("origin", ["scheduled", "adopted", "unmanaged"])
async def test_of_other_grants_without_a_decision_nothing_is_claimed(origin: str) -> None:
    answer = await explain_pod(a_grant(origin))

    assert answer.summary == "it has an allocation (allocated), but no decision is recorded"


async def test_a_pod_that_nothing_knows_is_not_found() -> None:
    with pytest.raises(NotFound, match="no decision is recorded for a pod with uid u"):
        await explain_pod()


async def test_a_pod_that_waits_where_nodes_are_cordoned_has_them_as_a_reason() -> None:
    answer = await explain_pod(pods=Waits("hami-scheduler"), namespace="ns", name="p")
    other = await explain_pod(pods=Waits("default-scheduler"), namespace="ns", name="p")

    assert [(one.node, one.text) for one in answer.nodes] == [
        ("n7", "is cordoned (SchedulingDisabled): `kubectl uncordon n7` opens it")
    ]
    assert list(other.nodes) == []


async def test_a_resource_that_is_nearly_ours_is_asked_about_where_nothing_was_decided() -> None:
    answer = await explain_pod(pods=Waits(), namespace="ns", name="p")

    assert answer.summary.startswith("the pod asks for no card")
    assert any("was nvidia.com/gpumem meant?" in note for note in answer.notes)


@pytest.mark.parametrize(
    ("silent", "condition", "limits"),
    [
        (frozenset(), "cordoned", "enforced"),
        (frozenset({NodeName("n1")}), "node-silent", "unknown"),
    ],
)
async def test_cards_that_are_not_as_granted_are_named_and_limits_that_nobody_sees_are_unknown(
    silent: frozenset[NodeName], condition: str, limits: str
) -> None:
    held = a_grant("scheduled") | {"ended_at": None, "limit_state": "enforced"}

    answer = await explain_pod(held, silent=silent)

    [card] = answer.cards
    assert (card.condition, card.sentence, card.advice) == (condition, "it is so", "Do this")
    assert answer.attempts[0]["limit_state"] == limits
