"""Grants that go to other cards than before: what each move gives back, takes, and counts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hamicommon.domain.allocations import Allocation, ContainerGrant
from hamicommon.domain.ids import AllocationId
from hamicommon.ledger.cards.demands import CardDemand, demands
from hamicommon.ledger.model import QuotaOf, Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """An allocation's slices on other cards than before."""

    allocation_id: AllocationId
    token: int
    """The row must still carry it."""
    containers: tuple[ContainerGrant, ...]


def exchanged(
    before: tuple[ContainerGrant, ...], after: tuple[ContainerGrant, ...], rules: Rules
) -> tuple[tuple[CardDemand, ...], tuple[CardDemand, ...]]:
    """What a move gives back and what it takes.

    A card on which nothing changes is left alone: it may have fallen sick since it was granted.
    """
    held = {card.uuid: card for card in demands(before)}
    wanted = {card.uuid: card for card in demands(after, rules)}
    same = {
        uuid
        for uuid in held.keys() & wanted.keys()
        if _amounts(held[uuid]) == _amounts(wanted[uuid])
    }
    return (
        tuple(card for uuid, card in held.items() if uuid not in same),
        tuple(card for uuid, card in wanted.items() if uuid not in same),
    )


def _amounts(card: CardDemand) -> tuple[object, ...]:
    return card.slots, card.memory_mib, card.core_percent, card.details


def quota_changes(
    moved: Iterable[tuple[Allocation, Move]], quota_of: QuotaOf
) -> dict[str, dict[str, int]]:
    """By namespace, in order, how much more (or less) each quota's amount is after the moves.

    A pod with an init container and another one counts the larger of the two while they share a
    card, and both once the kubelet gave them different ones.
    """
    changes: dict[str, dict[str, int]] = {}
    for old, move in moved:
        amounts = changes.setdefault(old.namespace, {})
        for resource, amount in quota_of(move.containers).items():
            amounts[resource] = amounts.get(resource, 0) + amount
        for resource, amount in quota_of(old.containers).items():
            amounts[resource] = amounts.get(resource, 0) - amount
    return {
        namespace: changed
        for namespace, amounts in sorted(changes.items())
        if (changed := {resource: amount for resource, amount in amounts.items() if amount})
    }
