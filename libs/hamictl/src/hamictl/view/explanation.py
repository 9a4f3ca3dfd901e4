"""Format the scheduler's explanation: a sentence, the nodes, and advice. Pure.

The answer's fields are those of `hamicommon.explain.answer.Explanation` (docs/explain.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hamicommon.k8s.types import JsonMapping
from rich.table import Table

from hamictl.output.records import text_of
from hamictl.view.lists import memory, slice_lines, table

# One screen: more nodes than this are counted instead of named.
_NODES_NAMED = 10
_CHANGES_NAMED = 8
_EARLIER_NAMED = 3
_FRAGMENTATION = "fragmentation"
"""Node policy whose scores are milli of a card; named here to avoid importing the engine."""
_LIVE = ("reserved", "binding", "bound", "allocated", "releasing")


def explanation(answer: JsonMapping, *, name: str) -> Iterator[str | Table]:
    """Return paragraphs and tables of the explanation."""
    yield _head(answer, name)
    yield from (f"\n▲ {text}" for text in card_troubles(answer))
    held = [row for row in answer["attempts"] if row["state"] in _LIVE]
    for allocation in held:
        limits = allocation.get("limit_state")
        checked = "" if limits is None else f", limits {limits}"
        if allocation["state"] == "reserved":
            yield f"\nRoom on {allocation['node']}, its own once others have ended:"
        else:
            yield f"\nHolds on {allocation['node']} ({allocation['state']}{checked}):"
        yield from (f"  {line}" for line in slice_lines(allocation))
    if answer["asked"]:
        yield f"\nAsked for: {'; '.join(answer['asked'])} (policy: {answer['policy']})"
    if answer["nodes"]:
        yield _nodes(answer)
        if left_out := _left_out(answer):
            yield f"  {left_out}"
    yield from _changes(answer)
    yield from _quota_users(answer)
    yield from (f"\nNote: {note}" for note in answer["notes"])
    yield from _traces(answer)


def card_troubles(answer: JsonMapping) -> list[str]:
    """Return problems of the pod's cards and advice, each sentence once."""
    # An older scheduler does not send this field.
    cards = answer.get("cards") or ()
    return list(dict.fromkeys(f"{card['sentence']}. {card['advice']}." for card in cards))


def _head(answer: JsonMapping, name: str) -> str:
    """Return the first sentence, which also shows that a wait is over."""
    # An older scheduler does not send these fields.
    end, at = answer.get("wait_end"), _time(answer.get("wait_ended_at"))
    if not end:
        return f"{name}{_HEADS.get(answer['outcome'], answer['outcome'])}: {answer['summary']}"
    over = {
        "deleted": f" was deleted at {at} without having been placed",
        "gone": f" was deleted after {_time(answer['last_at'])}, while no scheduler watched",
        "bound": f" no longer waiting: it was on a node at {at}",
        "finished": f" no longer waiting: it had finished at {at}",
    }
    return f"{name}{over.get(end, ' no longer waiting')}. Its last refusal: {answer['summary']}"


_HEADS = {
    "placed": " was placed",
    "refused": " waits",
    "error": " could not be decided on",
    "undecided": " was never decided on",
}


def score_text(policy: str, score: float | None) -> str:
    """Explain a score under its policy; `policy` begins with the node policy."""
    if score is None:
        return ""
    if _FRAGMENTATION not in policy.partition(",")[0]:
        return f"usage {score:.2f} of 30"
    return f"strands {abs(score):.0f} milli" if score <= 0 else f"{score:.0f} milli less stranded"


def parts_text(parts: JsonMapping | None) -> str:
    """Explain the parts of a placement's cost that stand for capacity lost to later pods."""
    if parts is None:
        return ""
    kept = (
        (parts["whole_nodes_milli"], "whole nodes"),
        (parts["scarce_models_milli"], "scarce models"),
    )
    named = [f"{amount:+.0f} for {what}" for amount, what in kept if round(amount)]
    return f"{parts['cards_milli']:.0f} on its cards, {', '.join(named)}" if named else ""


def _nodes(answer: JsonMapping) -> Table:
    rows: list[Sequence[str]] = []
    for node in answer["nodes"][:_NODES_NAMED]:
        if node["fits"]:
            verdict = "chosen" if node["chosen"] else "fits"
            score = score_text(answer["policy"], node["score"])
            # An older scheduler does not send this field.
            if parts := parts_text(node.get("parts")):
                score = f"{score}: {parts}"
            rows.append((text_of(node["node"]), verdict, score, ""))
        else:
            reason = "" if node["reason"] == node["text"] else text_of(node["reason"])
            rows.append((text_of(node["node"]), "no", text_of(node["text"]), reason))
    return table("", ("NODE", "FITS", "WHY", "HAMI'S REASON"), rows)


def _left_out(answer: JsonMapping) -> str:
    parts = []
    more = answer["nodes_left_out"] + max(0, len(answer["nodes"]) - _NODES_NAMED)
    if more:
        parts.append(f"{more} more nodes")
    if answer["nodes_without_cards"]:
        parts.append(f"{answer['nodes_without_cards']} nodes without such cards")
    return f"and {' and '.join(parts)}" if parts else ""


def _changes(answer: JsonMapping) -> Iterator[str]:
    changes = answer["counterfactuals"]
    if changes:
        yield "\nWhat would help, each on its own:"
        yield from (f"  - {change['text']}" for change in changes[:_CHANGES_NAMED])
        if len(changes) > _CHANGES_NAMED:
            yield f"  and {len(changes) - _CHANGES_NAMED} more (-o json)"
    elif answer["outcome"] == "refused" and answer["cards_as_of"] and not answer.get("wait_end"):
        yield "\nNo single change of the pod, and no end of other pods, would make it fit."


def _quota_users(answer: JsonMapping) -> Iterator[str]:
    users = answer["quota_users"]
    if users:
        unit = " MiB" if answer["quota"].get("unit_mib") else ""
        named = ", ".join(
            f"{user['pod']} {user['amount']}{unit}" for user in users[:_CHANGES_NAMED]
        )
        yield f"\nThe quota is used by: {named}"


def _traces(answer: JsonMapping) -> Iterator[str]:
    yield ""
    if answer["decided_at"] is not None:
        times = answer["repeat_count"]
        since = _time(answer["decided_at"])
        if times > 1:
            yield f"Decided {times} times alike since {since}, last at {_time(answer['last_at'])}."
        else:
            yield f"Decided at {since}."
        if answer["cards_as_of"] not in (None, answer["last_at"]):
            yield f"Cards are shown as they were at {_time(answer['cards_as_of'])}."
    if answer["retry"]:
        yield f"Next: {answer['retry']}."
    if answer["trace_id"]:
        # The scheduler answers for a pod that already holds cards without the cluster view.
        version = answer["view_version"]
        yield f"Trace {answer['trace_id']}{f', view version {version}' if version else ''}."
    for older in answer["earlier"][:_EARLIER_NAMED]:
        yield f"Before, at {_time(older['at'])}: {older['outcome']}: {older['summary']}"
    if len(answer["earlier"]) > _EARLIER_NAMED:
        yield f"and {len(answer['earlier']) - _EARLIER_NAMED} decisions before (-o json)"


def _time(text: Any) -> str:
    return text_of(text)[:19].replace("T", " ")


NEAREST_SHOWN = 10
"""Maximum number of cards shown; `explain -o json` has all that were stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearMiss:
    """A card that was refused."""

    node: str
    card: str
    uuid: str
    short: str
    """Missing amount; empty if the reason is not an amount."""
    share: float
    """Missing part of the requested amount, 0..1; 1 if the reason is not an amount."""
    why: str
    reason: str


def near_misses(answer: Mapping[str, Any]) -> Sequence[NearMiss]:
    """Return the refused cards of an explanation, those that lack the least first."""
    found = [
        _near_miss(str(node["node"]), card)
        for node in answer.get("nodes") or ()
        for card in node.get("cards") or ()
        if not card["fits"]
    ]
    return sorted(found, key=lambda one: (one.share, one.node, one.card))


def _near_miss(node: str, card: Mapping[str, Any]) -> NearMiss:
    asked, unit = float(card.get("requested") or 0), str(card.get("unit") or "")
    lacks = asked - float(card.get("available") or 0) if asked else 0.0
    short = memory(round(lacks)) if unit == "MiB" else f"{lacks:g} {unit}"
    return NearMiss(
        node=node,
        card=text_of(card.get("index")),
        uuid=str(card["uuid"]),
        short=short if lacks > 0 else "",
        share=lacks / asked if lacks > 0 else 1.0,
        why=str(card["text"]),
        reason=str(card["reason"]),
    )


def near_misses_table(found: Sequence[NearMiss]) -> Table:
    """Return a table of the refused cards that lack the least."""
    return table(
        f"Nearest cards, of {len(found)} refused",
        ("NODE", "CARD", "SHORT BY", "WHY", "HAMI'S REASON", "UUID"),
        (
            (one.node, one.card, one.short or "-", one.why, one.reason, one.uuid)
            for one in found[:NEAREST_SHOWN]
        ),
    )
