"""Why a pod is where it is, of pods that no decision of ours is recorded about."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hami_scheduler.api.explain import Explainer
from hamicommon.device_config import DeviceConfig
from hamicommon.domain.granted_cards import ConditionKind, GrantedCardCondition
from hamicommon.domain.ids import GpuUuid, NodeName, PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import NotFound
from hamicommon.explain.answer import Explanation
from hamicommon.ledger.granted_cards import PodCard
from hamicommon.vendors.registry import Vendors


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
    """A pod of another scheduler, since it names a resource that nobody serves."""

    async def get(self, namespace: str, name: str) -> Any:
        limits = {"nvidia.com/gpumemory": "4096"}
        return {
            "metadata": {"namespace": namespace, "name": name, "uid": "u"},
            "spec": {"containers": [{"name": "cuda", "resources": {"limits": limits}}]},
        }


async def explained(
    *attempts: dict[str, Any],
    pods: object = None,
    namespace: str = "",
    name: str = "",
    silent: frozenset[NodeName] = frozenset(),
) -> Explanation:
    explainer = Explainer(
        queries=cast(Any, Ledger(*attempts)),
        pods=cast(Any, pods or Gone()),
        vendors=Vendors.from_config(DeviceConfig()),
        scheduler_name="hami-scheduler",
        recorder=cast(Any, SimpleNamespace(dropped=0, waiting=0)),
        new_view=cast(Any, None),
        silent=lambda: silent,
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
    answer = await explained(a_grant("claim"))

    assert (answer.outcome, answer.namespace, answer.pod_name) == ("undecided", "ns", "p")
    assert answer.summary == (
        "kube-scheduler allocated its ResourceClaims, and the ledger granted them when its node "
        "prepared them (allocated)"
    )
    assert list(answer.attempts) == [a_grant("claim")]


@pytest.mark.parametrize("origin", ["scheduled", "adopted", "unmanaged"])
async def test_of_other_grants_without_a_decision_nothing_is_claimed(origin: str) -> None:
    answer = await explained(a_grant(origin))

    assert answer.summary == "it has an allocation (allocated), but no decision is recorded"


async def test_a_pod_that_nothing_knows_is_not_found() -> None:
    with pytest.raises(NotFound, match="nothing was decided about a pod with uid u"):
        await explained()


async def test_a_resource_that_is_nearly_ours_is_asked_about_where_nothing_was_decided() -> None:
    answer = await explained(pods=Waits(), namespace="ns", name="p")

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

    answer = await explained(held, silent=silent)

    [card] = answer.cards
    assert (card.condition, card.sentence, card.advice) == (condition, "it is so", "Do this")
    assert answer.attempts[0]["limit_state"] == limits
