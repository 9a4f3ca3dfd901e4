"""The scheduler's explain answer in words: what was decided, and every node's reason. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hamictl.view.tables import of

# More nodes than this are counted instead of named.
_NODES_NAMED = 20


def explanation(answer: Mapping[str, Any], *, name: str) -> Iterator[str]:
    """Lines for a terminal; newest decision first, the older ones in short."""
    allocation = answer.get("allocation")
    if allocation is not None:
        yield f"{name} holds slices on {allocation['node']} ({allocation['state']}):"
        for share in allocation["devices"]:
            yield (
                f"  {share['container']}: {share['memory_mib']} MiB,"
                f" {share['core_percent']} % cores of {share['device_uuid']}"
            )
    decisions = answer.get("decisions") or []
    if not decisions and allocation is None:
        yield f"{name}: no decision has been made yet; it may not ask for a card of ours"
        return
    if decisions:
        yield from _decision(decisions[0], name)
    for older in decisions[1:]:
        yield f"  before, at {of(older['at'])[:19]}: {older['outcome']} {older['message']}"


def _decision(decision: Mapping[str, Any], name: str) -> Iterator[str]:
    times = decision["repeat_count"]
    again = (
        f", and {times - 1} more times until {of(decision['last_at'])[:19]}" if times > 1 else ""
    )
    if decision["outcome"] == "placed":
        yield f"{name} was placed on {decision['node']} at {of(decision['at'])[:19]}"
    else:
        yield f"{name} fits nowhere, decided at {of(decision['at'])[:19]}{again}:"
    if decision["message"]:
        yield f"  {decision['message']}"
    reasons = sorted((decision.get("node_reasons") or {}).items())
    for node, reason in reasons[:_NODES_NAMED]:
        yield f"  {node}: {reason}"
    if len(reasons) > _NODES_NAMED:
        yield f"  and {len(reasons) - _NODES_NAMED} more nodes"
    if decision.get("trace_id"):
        yield f"  trace {decision['trace_id']}"
