"""An event for each condition of a pod's cards, once, and again when another one comes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

from hami_scheduler.reconcile.stuck_pods import CardConditionReporter
from hamicommon.domain.granted_cards import HEALTHY, ConditionKind, GrantedCardCondition
from hamicommon.domain.ids import GpuUuid, NodeName, PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.ledger.granted_cards import PodCard
from hamicommon.process.bulkhead import Bulkhead

LOST = GrantedCardCondition(kind=ConditionKind.LOST, sentence="it is lost", advice="Delete the pod")
CORDONED = GrantedCardCondition(
    kind=ConditionKind.CORDONED, sentence="it is cordoned", advice="Wait"
)


class Cards:
    """Queries and announcer: one pod's cards."""

    def __init__(self) -> None:
        self.conditions: list[GrantedCardCondition] = []
        self.shown: list[tuple[str, bool]] = []

    async def pod_cards(self, *, silent: Collection[NodeName]) -> list[PodCard]:
        del silent
        pod = PodRef(uid=PodUid("u"), namespace="ns", name="p")
        return [
            PodCard(pod=pod, container="main", uuid=GpuUuid(f"GPU-{n}"), condition=condition)
            for n, condition in enumerate(self.conditions)
        ]

    def announce(self, pod: PodRef, reason: str, message: str, **about: Any) -> None:
        del pod, reason
        assert about["once"]
        self.shown.append((message, about["warning"]))


async def test_each_text_is_shown_once_until_it_changes_or_ends() -> None:
    cards = Cards()
    reporter = CardConditionReporter(
        cast(Any, cards), silent=frozenset, announcer=cast(Any, cards), bulkhead=Bulkhead()
    )
    looks = [[CORDONED], [CORDONED, HEALTHY], [CORDONED, LOST], [HEALTHY], [LOST, LOST]]
    found = []

    for cards.conditions in looks:
        found.append(await reporter.once())

    assert found == [1, 1, 1, 0, 1]
    assert cards.shown == [
        ("it is cordoned. Wait.", False),
        ("it is cordoned. Wait. it is lost. Delete the pod.", True),
        ("it is lost. Delete the pod.", True),
    ]
