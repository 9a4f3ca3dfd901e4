"""Condition of a card that was granted to a pod: its problem, and what to do about it.

One function serves every output: explain, describe, the pages and the pod's event.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from hamicommon.domain.ids import GpuUuid, NodeName

IN_MIG_MODE = "it was switched to MIG mode"
"""`health_reason` of a card that was switched to MIG mode although it is offered in slices."""
_MIG = "mig"


class ConditionKind(StrEnum):
    """Condition of a granted card."""

    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    LOST = "lost"
    REPLACED = "replaced"
    CORDONED = "cordoned"
    MODE_CHANGED = "mode-changed"
    NODE_SILENT = "node-silent"

    @property
    def hides_limits(self) -> bool:
        """Whether it is unknown on such a card if the pod's limits are enforced."""
        return self not in (self.HEALTHY, self.UNHEALTHY, self.CORDONED)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedCard:
    """One card of a live grant with its present state in the ledger."""

    node: NodeName
    uuid: GpuUuid
    index: int
    present: bool
    """Whether the card's node still reports it."""
    healthy: bool
    health_reason: str
    cordoned: bool
    mode: str
    """Operating mode of the card now."""
    is_instance: bool
    """Whether a MIG instance of the card was granted."""
    replaced_by: GpuUuid | None = None
    """New card that the node reports in place of this one."""
    node_gone: bool = False
    node_silent: bool = False
    heard_at: datetime | None = None
    """Time of the last message of the node's agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedCardCondition:
    """Problem of a granted card and the advice about it; both empty for a healthy card."""

    kind: ConditionKind
    sentence: str = ""
    advice: str = ""

    @property
    def text(self) -> str:
        """Return problem and advice in one paragraph."""
        return f"{self.sentence}. {self.advice}." if self.sentence else ""


HEALTHY = GrantedCardCondition(kind=ConditionKind.HEALTHY)
_RECREATE_POD = "Delete the pod, so that its controller starts another one on a card that is there"


def condition_of(card: GrantedCard) -> GrantedCardCondition:
    """Return the most serious problem of a card."""
    name = f"card {card.index} of {card.node} ({card.uuid})"
    if card.replaced_by and not (card.present and card.healthy):
        return GrantedCardCondition(
            kind=ConditionKind.REPLACED,
            sentence=f"{name} was replaced: the node has {card.replaced_by} in its place",
            advice=_RECREATE_POD,
        )
    if not card.present:
        return _absent(card, name)
    is_mig = card.mode == _MIG or card.health_reason == IN_MIG_MODE
    if is_mig and not card.is_instance:
        return GrantedCardCondition(
            kind=ConditionKind.MODE_CHANGED,
            sentence=f"{name} was switched to MIG mode, and the pod was granted a slice of it",
            advice="Delete the pod, so that it is placed again, or switch the card back",
        )
    if card.is_instance and not is_mig:
        return GrantedCardCondition(
            kind=ConditionKind.MODE_CHANGED,
            sentence=f"{name} left MIG mode, and the pod was granted an instance of it",
            advice="Delete the pod, so that it is placed again, or switch the card back",
        )
    if not card.healthy:
        return GrantedCardCondition(
            kind=ConditionKind.UNHEALTHY,
            sentence=f"{name} is unhealthy: {card.health_reason.rstrip('.') or 'unknown reason'}",
            advice="CUDA calls may fail, and nothing new is placed on it. Delete the pod, so that "
            "its controller starts another one elsewhere, or repair the card",
        )
    if card.node_silent:
        heard = f"since {card.heard_at:%Y-%m-%d %H:%M:%S}" if card.heard_at else "so far"
        return GrantedCardCondition(
            kind=ConditionKind.NODE_SILENT,
            sentence=f"the node-agent of {card.node} has not reported {heard}: the state of its "
            "cards and limits is unknown",
            advice="Check the node and its hami-node-agent pod (`hamictl doctor`). The pod keeps "
            "its slices until it is deleted",
        )
    if card.cordoned:
        return GrantedCardCondition(
            kind=ConditionKind.CORDONED,
            sentence=f"{name} is cordoned: no new pods are placed on it, and the pod keeps running",
            advice="No action is needed; before the card is removed, delete the pod, so that its "
            "controller starts another one elsewhere",
        )
    return HEALTHY


def _absent(card: GrantedCard, name: str) -> GrantedCardCondition:
    why = "the node was deleted" if card.node_gone else "the node no longer reports it"
    return GrantedCardCondition(
        kind=ConditionKind.LOST,
        sentence=f"{name} is lost: {why}",
        advice=f"{_RECREATE_POD}, and look at the card: it may be broken, unplugged, hidden by the "
        "agent's configuration or on its way to MIG mode",
    )


def texts_of(conditions: Iterable[GrantedCardCondition]) -> list[str]:
    """Return the texts of problems, each once: a silent node is one sentence for all its cards.

    >>> texts_of([HEALTHY])
    []
    """
    return [text for text in dict.fromkeys(one.text for one in conditions) if text]


class LimitState(StrEnum):
    """State of a container's limits on one card, from best to worst.

    `hami_node_agent/enforcement` decides it from what the driver reports of each process; the
    scheduler keeps the history (`limit_periods`).
    """

    ENFORCED = "enforced"
    """The container holds no more than its grant, and all its processes use the library."""
    UNKNOWN = "unknown"
    """Use or owner of a process can't be determined."""
    BYPASSED = "bypassed"
    """The container uses a card without a grant, or without the library."""
    EXCEEDED = "exceeded"
    """The container's processes hold more than its grant and the permitted overhead."""

    @property
    def severity(self) -> int:
        """Return the severity from 0 (best) to 3 (worst)."""
        return _SEVERITY[self]

    @property
    def violates(self) -> bool:
        """Whether the container violates its limits; False if that is unknown."""
        return self in (LimitState.BYPASSED, LimitState.EXCEEDED)


_SEVERITY = {state: severity for severity, state in enumerate(LimitState)}
