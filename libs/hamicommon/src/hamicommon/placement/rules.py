"""Rules that refuse cards, and reasons that refuse whole nodes, with all their texts.

A row has the reason's code (HAMi's where HAMi has one, protocol 4.7) and all of its texts; those of
explain, labels of metrics, the pages' terms and the reference are made of it. What a rule asks of
a card is in `predicates.py`, which vendor asks it in `VendorRules`; libs/hamicommon/add-a-rule.md
leads through an example.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Number and texts of a rule."""

    number: int
    """Number in decision records; never changes."""
    reason: str = ""
    """Code in answers to kube-scheduler, events, logs and labels of metrics."""
    group: str = ""
    """Description of cards that fail the rule: `3 cards <group>`."""
    term: str = ""
    """Term of the web pages for the reason; rules with one code share it."""
    help: str = "wait until a pod ends"
    """Advice to the owner of a refused pod."""
    unit: str = ""
    """Unit of the amounts that the rule compares: MiB, percent or slots; empty: none."""
    of_use: bool = False
    """Whether the rule depends on grants; such rules are checked after all others."""
    always: bool = False
    """Whether the rule applies to every vendor; others only if `VendorRules` names them."""


class Rule(IntEnum):
    """Reason to refuse a card."""

    row: Row

    def __new__(cls, row: Row) -> Self:
        """Make the member of the row's number."""
        rule = int.__new__(cls, row.number)
        rule._value_ = row.number
        rule.row = row
        return rule

    @property
    def reason(self) -> str:
        """Code of the rule; empty for FITS and NO_CARD."""
        return self.row.reason

    FITS = Row(number=0)
    NOT_HEALTHY = Row(
        number=1,
        reason="CardNotHealth",
        group="unhealthy",
        term="unhealthy cards",
        help="repair the cards",
    )
    CORDONED = Row(
        number=2,
        reason="CardCordoned",
        group="cordoned",
        term="cordoned cards",
        help="uncordon a card (annotation hami.io/device-cordon of its node)",
    )
    TYPE = Row(
        number=3,
        reason="CardTypeMismatch",
        group="of another type than asked for",
        term="type of card",
        help="change the pod's annotations",
    )
    UUID = Row(
        number=4,
        reason="CardUuidMismatch",
        group="ruled out by the uuids in the pod's annotations",
        term="named card",
        help="change the pod's annotations",
    )
    NOT_OFFERED = Row(
        number=5,
        reason="CardTakenByAnotherPod",
        group="just taken by another pod",
        term="taken by another pod",
        always=True,
    )
    """The caller excluded the card, because another pod has just taken it. The code is ours."""
    SLOTS = Row(
        number=6,
        reason="CardTimeSlicingExhausted",
        group="with all slots taken",
        term="no slot left",
        unit="slots",
        of_use=True,
    )
    MUTEX = Row(
        number=7,
        reason="ExclusiveDeviceAllocateConflict",
        group="in use, while policy mutex wants an idle one",
        term="idle card wanted",
        help="change the pod's policy, or wait until a card is idle",
        unit="slots",
        of_use=True,
    )
    MEMORY = Row(
        number=8,
        reason="CardInsufficientMemory",
        group="with too little free memory",
        term="memory",
        help="ask for less, or wait until a pod ends",
        unit="MiB",
        of_use=True,
    )
    CORES = Row(
        number=9,
        reason="CardInsufficientCore",
        group="with too few free cores",
        term="cores",
        help="ask for less, or wait until a pod ends",
        unit="percent",
        of_use=True,
    )
    EXCLUSIVE = Row(
        number=10,
        reason="ExclusiveDeviceAllocateConflict",
        group="in use, while the pod needs all cores of a card",
        term="idle card wanted",
        help="ask for less than 100 % of the cores, or wait until a card is idle",
        unit="percent",
        of_use=True,
    )
    CORES_EXHAUSTED = Row(
        number=11,
        reason="CardComputeUnitsExhausted",
        group="with all cores granted",
        term="no core left",
        of_use=True,
    )
    """The pod asks for no cores, and all cores are granted to others."""
    CARD_OF_POD = Row(
        number=13,
        reason="CardNotFoundCustomFilterRule",
        group="other than the one that the pod's earlier containers are on",
        term="one card for all containers",
        help="ask for less in all containers together, or wait until a card is idle",
        of_use=True,
    )
    """The vendor wants all containers of a pod on one card, and earlier ones are on another."""
    IN_USE = Row(
        number=14,
        reason="ExclusiveDeviceAllocateConflict",
        group="in use, while the vendor gives whole cards only",
        term="idle card wanted",
        unit="slots",
        of_use=True,
    )
    MIG_TOPOLOGY = Row(
        number=15,
        reason="CardMigTopologyInfeasible",
        group="without a free place for a MIG instance of that size",
        term="no MIG profile free",
        help="ask for less memory, or wait until a pod ends",
    )
    """No MIG profile with enough memory has a free placement."""
    POD_CLASS = Row(
        number=16,
        reason="CardAppClassMismatch",
        group="in use by pods of another class",
        term="another class of pods",
    )
    QOS = Row(
        number=17,
        reason="CardQosPolicyMismatch",
        group="in use under another QoS policy",
        term="another QoS policy",
    )
    SLICE_SIZE = Row(
        number=18,
        reason="CardSliceSizeMismatch",
        group="in use in slices of another size",
        term="another slice size",
    )
    """The card is in use in slices of another size. The code is ours."""
    MODE = Row(
        number=19,
        reason="ModeNotFit",
        group="not cut in the way that is asked for",
        term="another way of cutting",
        help="change the pod's annotations, or the size that it asks for",
    )
    NO_CARD = Row(number=255)
    """The place is empty, or the card is of another vendor."""


RULES = {rule.value: rule for rule in Rule}
"""Rules by number; faster than the enumeration."""

REASONS = {rule: rule.reason for rule in Rule if rule.reason}
"""Codes of the rules that refuse cards."""


class NodeReason(NamedTuple):
    """Reason of a whole node, or of a pod for which no node was checked."""

    term: str
    """Term of the web pages for the reason."""
    meaning: str
    is_label: bool = True
    """Whether metrics use it as a label, too."""


NUMA_NOT_FIT = "NumaNotFit"
PARTIAL = "AllocatedCardsInsufficientRequest"
NODE_INSUFFICIENT = "NodeInsufficientDevice"
NODE_UNREGISTERED = "node unregistered"
POD_REFUSED = "PodRefused"
AGENT_SILENT = "node-agent silent"
ROOM_HELD = "RoomHeld"
GROUP_WAITING = "GroupWaiting"
NOT_ASKED = "not asked"
OTHER = "other"

NODE_REASONS = {
    NUMA_NOT_FIT: NodeReason("NUMA", "cards that fit are on several NUMA nodes, one is needed"),
    PARTIAL: NodeReason("cards per node", "the node has fewer cards that fit than requested"),
    NODE_INSUFFICIENT: NodeReason("cards per node", "the node has fewer cards than requested"),
    NODE_UNREGISTERED: NodeReason("no cards registered", "the node has registered no cards"),
    POD_REFUSED: NodeReason(
        "the pod itself", "begins the reason of every node where the pod can't be read"
    ),
    AGENT_SILENT: NodeReason("silent agents", "the node is not offered: its agent is silent"),
    ROOM_HELD: NodeReason(
        "room held",
        "cards of a node are reserved for the pod until the pods evicted for it are gone",
    ),
    GROUP_WAITING: NodeReason(
        "group waits",
        "the pods of the group start together, and too few of them can start now",
    ),
    NOT_ASKED: NodeReason(
        "not asked about",
        "kube-scheduler has not tried the pod: it is gated, or was refused before",
        is_label=False,
    ),
    OTHER: NodeReason("other", "a reason that a vendor's rule wrote"),
}

REASON_LABELS = frozenset(
    {*REASONS.values(), *(code for code, row in NODE_REASONS.items() if row.is_label)}
)
"""Reasons that metrics use as labels."""

TERMS: Mapping[str, str] = {
    **{rule.reason: rule.row.term for rule in REASONS},
    **{code: row.term for code, row in NODE_REASONS.items()},
}


def reason_term(code: str) -> str:
    """Return the web pages' term for a reason: `memory` for `CardInsufficientMemory`.

    Unknown reasons stay as they are.
    """
    return TERMS.get(code, code)


def reason_label(reason: str) -> str:
    """Return the label of metrics for a reason.

    One of a fixed set, whatever a vendor's rule wrote.
    """
    if reason in REASON_LABELS or not reason:
        return reason
    return POD_REFUSED if reason.startswith(f"{POD_REFUSED}:") else OTHER


def text_of(reasons: Mapping[str, int], total: int) -> str:
    """Return HAMi's text for the reasons of a node's cards.

    `1/4 CardNotHealth, 2/4 CardInsufficientMemory`, sorted as text.
    """
    return ", ".join(
        sorted(f"{count}/{total} {reason}" for reason, count in reasons.items() if count)
    )


BEFORE_NUMA = (Rule.NO_CARD, Rule.NOT_HEALTHY, Rule.CORDONED, Rule.TYPE)
"""Rules because of which a card is ignored in the grouping by NUMA node."""
