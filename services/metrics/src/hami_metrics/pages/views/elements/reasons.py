"""Why pods wait, in a term; the code stays beside it, since logs and events have it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from hamicommon.placement.rules import (
    AGENT_SILENT,
    NODE_INSUFFICIENT,
    NODE_UNREGISTERED,
    NOT_ASKED,
    NUMA_NOT_FIT,
    PARTIAL,
    POD_REFUSED,
    REASONS,
    Rule,
)

TERMS: Mapping[str, str] = {
    REASONS[Rule.MEMORY]: "memory",
    REASONS[Rule.CORES]: "cores",
    REASONS[Rule.CORES_EXHAUSTED]: "no core left",
    REASONS[Rule.SLOTS]: "no slot left",
    REASONS[Rule.TYPE]: "type of card",
    REASONS[Rule.UUID]: "named card",
    REASONS[Rule.EXCLUSIVE]: "idle card wanted",
    REASONS[Rule.NOT_HEALTHY]: "unhealthy cards",
    REASONS[Rule.CORDONED]: "cordoned cards",
    REASONS[Rule.NOT_OFFERED]: "taken by another pod",
    REASONS[Rule.MIG_TOPOLOGY]: "no MIG profile free",
    REASONS[Rule.POD_CLASS]: "another class of pods",
    REASONS[Rule.QOS]: "another QoS policy",
    REASONS[Rule.MODE]: "another way of cutting",
    NODE_INSUFFICIENT: "cards per node",
    PARTIAL: "cards per node",
    NUMA_NOT_FIT: "NUMA",
    NODE_UNREGISTERED: "no cards registered",
    POD_REFUSED: "the pod itself",
    AGENT_SILENT: "silent agents",
    NOT_ASKED: "not asked about",
}


def reason_term(code: str) -> str:
    """`memory` of `CardInsufficientMemory`; of a reason that is not HAMi's, itself."""
    return TERMS.get(code, code)
