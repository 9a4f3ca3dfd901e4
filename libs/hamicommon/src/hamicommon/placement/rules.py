"""The rules by number and HAMi's names of them (protocol 4.7)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


class Rule(IntEnum):
    """Why a card was refused. The numbers are in decision records: they never change."""

    FITS = 0
    NOT_HEALTHY = 1
    CORDONED = 2
    TYPE = 3
    UUID = 4
    NOT_OFFERED = 5
    """The caller left this card out, because another pod has just taken it."""
    SLOTS = 6
    MUTEX = 7
    """In use, and the pod's policy contains `mutex`."""
    MEMORY = 8
    CORES = 9
    EXCLUSIVE = 10
    """A whole card's cores are asked for and somebody has a slice of it."""
    CORES_EXHAUSTED = 11
    """No share of cores is asked for, and all are promised to others."""
    CARD_OF_POD = 13
    """The pod's earlier containers are on another card, and the vendor wants one card per pod."""
    IN_USE = 14
    """In use, whatever the policy: the vendor gives whole cards only."""
    MIG_TOPOLOGY = 15
    """No MIG profile with enough memory has a placement that is still free."""
    POD_CLASS = 16
    """In use by pods of another class (MetaX)."""
    QOS = 17
    """In use under another QoS policy (MetaX)."""
    SLICE_SIZE = 18
    """In use in slices of another size (Kunlun)."""
    MODE = 19
    """Not cut in the way that is asked for (Ascend, Enflame)."""
    NO_CARD = 255
    """Not a card of the vendor asked for, or an empty place of the table."""


RULES = {rule.value: rule for rule in Rule}
"""By number; quicker than asking the enumeration."""

REASONS = {
    Rule.NOT_HEALTHY: "CardNotHealth",
    Rule.CORDONED: "CardCordoned",
    Rule.TYPE: "CardTypeMismatch",
    Rule.UUID: "CardUuidMismatch",
    Rule.NOT_OFFERED: "CardTakenByAnotherPod",
    Rule.SLOTS: "CardTimeSlicingExhausted",
    Rule.MUTEX: "ExclusiveDeviceAllocateConflict",
    Rule.MEMORY: "CardInsufficientMemory",
    Rule.CORES: "CardInsufficientCore",
    Rule.EXCLUSIVE: "ExclusiveDeviceAllocateConflict",
    Rule.CORES_EXHAUSTED: "CardComputeUnitsExhausted",
    Rule.CARD_OF_POD: "CardNotFoundCustomFilterRule",
    Rule.IN_USE: "ExclusiveDeviceAllocateConflict",
    Rule.MIG_TOPOLOGY: "CardMigTopologyInfeasible",
    Rule.POD_CLASS: "CardAppClassMismatch",
    Rule.QOS: "CardQosPolicyMismatch",
    Rule.SLICE_SIZE: "CardSliceSizeMismatch",
    Rule.MODE: "ModeNotFit",
}
"""HAMi's names, except those of NOT_OFFERED and SLICE_SIZE, which are ours."""

NUMA_NOT_FIT = "NumaNotFit"
PARTIAL = "AllocatedCardsInsufficientRequest"
NODE_INSUFFICIENT = "NodeInsufficientDevice"
NODE_UNREGISTERED = "node unregistered"
POD_REFUSED = "PodRefused"
"""Begins the reason of every node where the pod itself is refused, whatever the cards are."""
AGENT_SILENT = "node-agent silent"
"""The reason of a node that is not offered, whatever its cards are."""
NOT_ASKED = "not asked"
"""Of a waiting pod that kube-scheduler never asked about: gated, or refused before."""
OTHER = "other"
REASON_LABELS = frozenset(
    {*REASONS.values(), NUMA_NOT_FIT, PARTIAL, NODE_INSUFFICIENT, NODE_UNREGISTERED, POD_REFUSED}
    | {AGENT_SILENT, OTHER}
)
"""Reasons as labels of metrics."""


def reason_label(reason: str) -> str:
    """The reason as the label of a metric: one of a fixed set, whatever a vendor's rule wrote."""
    if reason in REASON_LABELS or not reason:
        return reason
    return POD_REFUSED if reason.startswith(f"{POD_REFUSED}:") else OTHER


def text_of(reasons: Mapping[str, int], total: int) -> str:
    """HAMi's reason of a node: `1/4 CardNotHealth, 2/4 CardInsufficientMemory`, sorted as text."""
    return ", ".join(
        sorted(f"{count}/{total} {reason}" for reason, count in reasons.items() if count)
    )


BEFORE_NUMA = (Rule.NO_CARD, Rule.NOT_HEALTHY, Rule.CORDONED, Rule.TYPE)
"""A card that fails one of these takes no part in the grouping by NUMA node."""
