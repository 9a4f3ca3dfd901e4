"""Which cards are not as they were: two moments of the cluster side by side. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hami_metrics.pages.domain.cluster import PageCard, PageCluster, condition


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Of the cards of an earlier moment."""

    cards: frozenset[str]
    """Uuids of those that are held or are well in another way, or are no longer there."""
    new: int
    """Cards that are there now and were not then."""


def differences(then: PageCluster, now: PageCluster) -> Differences:
    """By who holds how much, and by the card's own state; how much is used does not count."""
    before = {card.uuid: _look(card) for card in then.cards()}
    after = {card.uuid: _look(card) for card in now.cards()}
    return Differences(
        cards=frozenset(uuid for uuid, look in before.items() if after.get(uuid) != look),
        new=len(after.keys() - before.keys()),
    )


def _look(card: PageCard) -> tuple[object, ...]:
    # That an agent is silent is true of now alone: nobody was silent in the past.
    held = frozenset((one.pod_uid, one.memory_mib, one.core_percent) for one in card.holders)
    return card.node, condition(card, unheard=False), card.health_reason, held
