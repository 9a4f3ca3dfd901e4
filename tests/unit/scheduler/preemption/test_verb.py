"""/preempt keeps kube-scheduler's victims where the slices fit then, and no other node."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import orjson
import pytest
from hami_scheduler.ports.ledger import Row
from hami_scheduler.preemption import verb
from hami_scheduler.preemption.planning import PreemptionQuestion
from hami_scheduler.preemption.verb import PreemptVerb, parse_preempt_args
from hamicommon import device_config
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.requests import Policy
from hamicommon.errors import InvalidRequest
from hamicommon.explain.counterfactuals import PodHolding
from hamicommon.k8s.types import Json
from hamicommon.placement.cluster.view import CardState
from hamicommon.preemption.holders import Wish
from hamicommon.preemption.holdings import Holder
from hamicommon.vendors.pod_request import PodRequests
from hamicommon.vendors.registry import Vendors

from tests.unit.devices import a_device
from tests.unit.scheduler.states import state_of

VENDORS = Vendors.from_config(device_config.load(None))
CARD = a_device(type="A100", memory_mib=10_000)
HELD = {"big": 6000, "small": 3000, "room": 500}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no busy machine change an answer."""
    monkeypatch.setattr(verb, "NODE_BUDGET_S", 30.0)
    monkeypatch.setattr(verb, "CALL_BUDGET_S", 60.0)


def pod_of(memory_mib: int) -> Json:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(memory_mib)}
    return {
        "metadata": {"name": "high", "namespace": "default", "uid": "high"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
    }


def holder(name: str, **facts: Any) -> Holder:
    held = PodHolding(
        pod=f"default/{name}",
        node=NodeName("n"),
        uuid=CARD.uuid,
        slots=1,
        memory_mib=HELD[name],
        core_percent=0,
    )
    return Holder(
        uid=PodUid(name),
        pod=f"default/{name}",
        node=NodeName("n"),
        priority=10,
        held=(held,),
        started_at=datetime(2026, 11, 30, tzinfo=UTC),
        **facts,
    )


class Question(PreemptionQuestion):
    """A question whose holders are known, whatever the ledger has."""

    def holders(self, rows: Sequence[Row]) -> list[Holder]:
        return [holder("big"), holder("small"), holder("room", is_room=True)]


class Facts:
    async def question(self, pod: Json, offered: frozenset[NodeName]) -> PreemptionQuestion:
        return Question(
            pod=pod,
            wish=Wish(priority=1000),
            packed=(),
            budgets=(),
            protected=frozenset(),
            min_runtime_s=0,
            closed={"are cordoned": frozenset({NodeName("shut")})},
            offered=offered,
        )


class Rows:
    """The ledger, which is asked only about open nodes."""

    async def held_at(self, at: datetime, nodes: Sequence[str], namespace: str) -> list[Row]:
        assert "shut" not in nodes
        return []


def build_body(nodes: dict[str, list[str]], memory_mib: int) -> bytes:
    """Return the body in the form of kube-scheduler 1.36."""
    meta = {
        node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 1}
        for node, uids in nodes.items()
    }
    return orjson.dumps(
        {"Pod": pod_of(memory_mib), "NodeNameToVictims": None, "NodeNameToMetaVictims": meta}
    )


async def answer(body: bytes, *, may_add: bool) -> dict[str, list[str]]:
    state = state_of(cast(Any, None), VENDORS.rules)
    usage = DeviceUsage(device=CARD, used_slots=3, used_memory_mib=sum(HELD.values()))
    state.cluster.set_node(NodeName("n"), [CardState(usage, 1)])
    before = state.cluster.cards(NodeName("n"))
    asked_verb = PreemptVerb(
        plans=cast(Any, Facts()),
        queries=cast(Any, Rows()),
        state=state,
        requests=PodRequests(vendors=VENDORS, defaults=Policy()),
        may_add=may_add,
        is_placeholder=lambda uid: uid == "placeholder",
    )
    found = orjson.loads(await asked_verb.answer(body))["NodeNameToMetaVictims"]
    assert state.cluster.cards(NodeName("n")) == before
    assert all(each["NumPDBViolations"] == 1 for each in found.values())
    return {node: [pod["UID"] for pod in each["Pods"]] for node, each in found.items()}


@pytest.mark.parametrize(
    ("memory_mib", "may_add", "expected"),
    [
        pytest.param(3500, False, {"n": ["small"]}, id="its end is enough"),
        pytest.param(3501, False, {}, id="in vain, so nobody ends"),
        pytest.param(9500, True, {"n": ["small", "big"]}, id="one more ends"),
        pytest.param(9501, True, {}, id="what is held for another pod stays"),
    ],
)
async def test_a_node_is_left_in_where_the_slices_fit_then(
    memory_mib: int, may_add: bool, expected: dict[str, list[str]]
) -> None:
    body = build_body({"n": ["small"], "shut": ["small"], "unknown": ["small"]}, memory_mib)
    assert await answer(body, may_add=may_add) == expected


@pytest.mark.parametrize(("created", "expected"), [(-60, {"n": ["small", "big"]}), (0, {})])
async def test_no_pod_is_added_before_the_delay_that_the_pod_asks_for(
    created: int, expected: dict[str, list[str]]
) -> None:
    body = orjson.loads(build_body({"n": ["small"]}, 9500))
    at = datetime.now(UTC) + timedelta(seconds=created)
    body["Pod"]["metadata"] |= {
        "annotations": {"hami.io/preemption-delay-seconds": "60"},
        "creationTimestamp": at.isoformat(timespec="seconds"),
    }

    assert await answer(orjson.dumps(body), may_add=True) == expected


async def test_no_slice_ends_a_placeholder() -> None:
    """Another node would be asked for in place of the one that has come."""
    assert await answer(build_body({"n": ["small", "placeholder"]}, 3500), may_add=True) == {}


async def test_a_node_without_victims_is_left_in_only_with_some() -> None:
    """kube-scheduler 1.38 asks about such nodes, and takes none back."""
    assert await answer(build_body({"n": []}, 400), may_add=True) == {}
    assert await answer(build_body({"n": []}, 3000), may_add=True) == {"n": ["small"]}


async def test_a_pod_without_cards_is_kube_schedulers_own() -> None:
    body = orjson.loads(build_body({"n": ["small"]}, 1))
    del body["Pod"]["spec"]["containers"][0]["resources"]
    assert await answer(orjson.dumps(body), may_add=True) == {"n": ["small"]}


def test_whole_pods_are_read_as_well_as_uids() -> None:
    body = {"pod": {}, "nodeNameToVictims": {"n": {"pods": [{"metadata": {"uid": "a"}}]}}}
    assert parse_preempt_args(orjson.dumps(body)).nodes == {"n": (("a",), 0)}


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"{}", b'{"Pod": {}, "NodeNameToMetaVictims": {"n": {"Pods": [{}]}}}'],
)
def test_what_is_no_question_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="extender preemption args"):
        parse_preempt_args(body)
