"""The nodes of before with what was read again of them. Pure.

What is made of a node's cards and kept, such as its line of the grid, is known by the object: cards
that are equal stay the same objects.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace

from hami_metrics.pages.domain.cluster import PageCard, PageNode


def refreshed(
    before: Mapping[str, PageNode],
    present: Mapping[str, PageNode],
    reread: Set[str],
    cards: Iterable[PageCard],
) -> dict[str, PageNode]:
    """The nodes that are present, each with its cards.

    `present`: a node that was there before is without its cards, a new one has all of them.
    `reread`: uuids of the cards that were read again; `cards`: those of them that are there.
    """
    arrived: dict[str, list[PageCard]] = defaultdict(list)
    for card in cards:
        arrived[card.node].append(card)
    found = {}
    for name, node in present.items():
        old = before.get(name)
        if old is None:
            found[name] = node
            continue
        held = _cards(old.cards, reread, arrived.get(name, ()))
        same = (held, node.heard_at, node.group) == (old.cards, old.heard_at, old.group)
        found[name] = old if same and node.source == old.source else replace(node, cards=held)
    return found


def _cards(
    old: tuple[PageCard, ...], reread: Set[str], arrived: Iterable[PageCard]
) -> tuple[PageCard, ...]:
    kept = [card for card in old if card.uuid not in reread]
    if len(kept) == len(old) and not arrived:
        return old
    known = {card.uuid: card for card in old}
    for card in arrived:
        was = known.get(card.uuid)
        kept.append(was if was is not None and was == card else card)
    fresh = tuple(sorted(kept, key=lambda card: (card.index, card.uuid)))
    return old if fresh == old else fresh
