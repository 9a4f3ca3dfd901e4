"""Decision about a group in plain English: how many pods fit, and what the next pod lacks."""

from __future__ import annotations

from hamicommon.explain.sentences import CardStock, asked_by, count_noun, refusal_sentence
from hamicommon.placement.groups import GroupDecision


def group_sentence(
    decision: GroupDecision, stock: CardStock, *, candidates: int, settled: int = 0
) -> str:
    """Return whether a group fits, and why its first pod that does not fit has no node.

    `settled`: members that have a place already and were no part of the decision.
    """
    fit = len(decision.placements) + settled
    needed = decision.needed + settled
    if decision.fits:
        return f"{count_noun(fit, 'pod')} fit together, {needed} needed"
    member, refusal = decision.first_refused, decision.refusal
    assert member is not None
    assert refusal is not None
    why = refusal_sentence(member, refusal.shortfalls.tables, stock, candidates=candidates)
    beside = f"beside the {fit} before it, " if fit else ""
    return (
        f"{fit} of the {count_noun(needed, 'pod')} that start together fit, in this order; "
        f"{member.name} wants {' and '.join(asked_by(member))}: {beside}{why}"
    )
