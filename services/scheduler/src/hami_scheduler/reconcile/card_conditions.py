"""Show each pod once what is wrong with a card that it holds, and what to do.

A card may be lost, replaced, cordoned, unhealthy or in another mode, or its node silent, while
the pod runs on: without an event its owner would learn of it from failing programs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hamicommon.domain.granted_cards import ConditionKind, texts_of
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.ledger.granted_cards import PodCard
from hamicommon.process.bulkhead import Bulkhead

from hami_scheduler.pod_events import CARD_CHANGED, Announcer

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.queries import PostgresQueries


@dataclass(eq=False)
class CardConditionReporter:
    """Compares the cards of live grants with what their pods were shown.

    `silent`: nodes whose agents are silent.
    """

    queries: PostgresQueries
    silent: Callable[[], Collection[NodeName]]
    announcer: Announcer
    bulkhead: Bulkhead
    _shown: dict[PodUid, str] = field(default_factory=dict, init=False)

    async def once(self) -> int:
        """Check once; return the number of pods that hold such a card. Raises: Unavailable."""
        by_pod: dict[PodUid, list[PodCard]] = {}
        for card in await self.queries.pod_cards(silent=self.silent()):
            by_pod.setdefault(card.pod.uid, []).append(card)
        shown: dict[PodUid, str] = {}
        for uid, cards in by_pod.items():
            text = " ".join(texts_of(card.condition for card in cards))
            if not text:
                continue
            shown[uid] = text
            if self._shown.get(uid) != text:
                with self.bulkhead.item("card-conditions", uid):
                    self._show(cards, text)
        self._shown = shown
        return len(shown)

    def _show(self, cards: list[PodCard], text: str) -> None:
        # A cordon is somebody's wish, and the pod continues.
        wished = {ConditionKind.HEALTHY, ConditionKind.CORDONED}
        self.announcer.announce(
            cards[0].pod,
            CARD_CHANGED,
            text,
            warning=any(card.condition.kind not in wished for card in cards),
            series="card",
            once=True,
        )
