"""Who has which card among containers of one template, while answers may go to others than meant.

Their slices differ in nothing but the card, so several are between bind and Allocate at the same
moment, and each takes whichever answer comes. Together they have as many seats as they are: the
cards of their grants. One that passed the scheduler by may take an answer and never start; its seat
is left over, and the last of them takes it. Before a container starts on another card than its own,
it and a container that was granted that card exchange their grants in the ledger, so on full cards
too there is a way from any order to one where each is counted where it runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from hami_node_agent.grants.book import GrantBook
from hami_node_agent.grants.candidates import Candidate, of_one_template
from hami_node_agent.grants.ownership import Reassigned, reassigned
from hami_node_agent.grants.records import Record


def seated(candidate: Candidate, book: GrantBook, records: Iterable[Record]) -> Candidate:
    """The candidate with the card that its answer is to name: its own unless another container has
    that by an answer of its own, and then one that none of them has.
    """
    wanted = candidate.container
    if len(wanted.shares) != 1:
        return candidate
    own = wanted.shares[0].uuid
    answered = [record for record in records if len(record.cards) == 1]
    if not any(record.cards[0] == own for record in answered):
        return candidate
    seats = {
        (grant.pod_uid, container.name): container.shares[0].uuid
        for grant in book.grants.values()
        for container in grant.device_containers
        if of_one_template(container, wanted)
    }
    mine = [record for record in answered if (record.pod_uid, record.container) in seats]
    left = Counter(seats.values())
    left.subtract(record.cards[0] for record in mine)
    free = min((card for card, count in left.items() if count > 0), default=own)
    if left[own] > 0 or free == own:
        return candidate
    share = replace(wanted.shares[0], uuid=free)
    return replace(candidate, container=replace(wanted, shares=(share,)))


def exchange_for(owner: Reassigned, astray: Iterable[Reassigned]) -> Reassigned | None:
    """Who gets the owner's card in exchange for the one on which the owner is to start: a container
    of its template that was granted that, and holds an answer of yet another. None: the kubelet
    shows none.

    What an answer names stays with the container for its life, so it is no matter when the ledger
    carries this out.
    """
    if len(owner.granted.shares) != 1:
        return None
    card = frozenset(owner.after.cards)
    for other in astray:
        if other.granted_cards == card and of_one_template(other.granted, owner.granted):
            there = replace(other.after, shares=owner.granted.shares)
            return Reassigned(
                after=reassigned(there, other.grant, other.granted), grant=other.grant
            )
    return None
