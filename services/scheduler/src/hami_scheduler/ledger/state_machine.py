"""Decide on an allocation's next state by the state of its pod (table in architecture 3.7).

Pure: `verdict(allocation, facts)` names the next state and why, or None. `transitions.py` carries
it out; the pod watch, the reconciler and the reaper all ask here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hamicommon.domain.allocations import Allocation
from hamicommon.domain.allocations import AllocationState as State
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.k8s.annotations import BIND_PHASE, PHASE_FAILED, PHASE_SUCCESS, annotations_of

TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})
STATUSES = ("initContainerStatuses", "containerStatuses")
"""Fields of a pod's status about its containers."""
FOUND_BOUND = "found bound"
NODE_HAS_IT = "reported by its node"
HOW_BOUND = frozenset({"", FOUND_BOUND, NODE_HAS_IT, "its node has it"})
"""Reason written when a row became `bound`, which explains no failure."""
AGENT_SEES_NONE = "its node reports no containers of it"
_SEES_NONE = frozenset({AGENT_SEES_NONE, "its node sees no container of it any more"})
"""Reason texts of this release and of 0.1.0."""
STILL_SEEN = "pod deleted; waiting for its node to report its containers gone"
POD_DELETED = "pod deleted"
MAX_REASON_LENGTH = 300
"""Maximum characters of a kubelet's message."""

_UNBOUND = frozenset({State.RESERVED, State.BINDING})
_RUNNING = frozenset({State.BOUND, State.ALLOCATED})
_GRANTED = _RUNNING | {State.BINDING, State.RELEASING}
"""States in which a node may have had the pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """Facts about a pod at the API server that determine its allocation's state."""

    uid: PodUid
    exists: bool
    phase: str = ""
    phase_reason: str = ""
    """Reason of the phase, if the kubelet gives one: `UnexpectedAdmissionError: ...`."""
    node: NodeName | None = None
    """Node to which it is, or was last, bound."""
    deleting: bool = False
    started: bool = False
    """Whether a container has started, after which every Allocate has been answered."""
    bind_phase: str = ""
    """Answer of another vendor's device plugin: `success`, `failed`, or none yet (protocol 2.7).

    Users could write it, so it counts only on nodes without our agent, and for existing grants.
    """
    node_exists: bool = True
    agent_speaks: bool = False
    """Whether the node's agent reports, so also that the pod left (`bus/heartbeats.py`)."""


@dataclass(frozen=True, slots=True)
class Transition:
    """Next state, with the reason."""

    target: State
    reason: str


def facts_of(pod: Mapping[str, Any]) -> PodFacts:
    """Read the facts from a pod object."""
    status = pod.get("status") or {}
    spec = pod.get("spec") or {}
    node = spec.get("nodeName")
    return PodFacts(
        uid=PodUid(pod["metadata"]["uid"]),
        exists=True,
        phase=str(status.get("phase", "")),
        phase_reason=_phase_reason(status),
        node=NodeName(node) if node else None,
        deleting=bool(pod["metadata"].get("deletionTimestamp")),
        started=_has_started(status),
        bind_phase=_bind_phase(pod),
    )


def _phase_reason(status: Mapping[str, Any]) -> str:
    parts = (status.get(key) for key in ("reason", "message"))
    return ": ".join(str(part) for part in parts if part)[:MAX_REASON_LENGTH]


def _bind_phase(pod: Mapping[str, Any]) -> str:
    phase = annotations_of(pod).get(BIND_PHASE, "")
    return phase if phase in (PHASE_SUCCESS, PHASE_FAILED) else ""


def _has_started(status: Mapping[str, Any]) -> bool:
    """Return whether a container has started, which follows Allocate for all of them."""
    return any(each.get("containerID") for key in STATUSES for each in status.get(key) or ())


def verdict(allocation: Allocation, facts: PodFacts) -> Transition | None:
    """Return the step that the facts require; None if the state is right."""
    if not allocation.live:
        return None
    if facts.exists and facts.phase in TERMINAL_PHASES:
        return _over(allocation, facts)
    if not facts.exists:
        return _gone_verdict(allocation, facts)
    if facts.node is not None:
        return _has_node(allocation, facts, facts.node)
    return None


def _over(allocation: Allocation, facts: PodFacts) -> Transition:
    on_node = allocation.state is State.BOUND or _bound_since(allocation, facts)
    never_ran = on_node and facts.phase == "Failed"
    reason = f"pod is {facts.phase}"
    if never_ran:
        # What its node reported of the grant is nearer to the cause than what the kubelet made of
        # it.
        why = facts.phase_reason if allocation.reason in HOW_BOUND else allocation.reason
        return Transition(State.FAILED, f"{reason}: {why}" if why else reason)
    return Transition(State.RELEASED, reason)


def _bound_since(allocation: Allocation, facts: PodFacts) -> bool:
    """Return whether the pod is on the node but the ledger still has it in `binding`."""
    return allocation.state is State.BINDING and facts.node == allocation.node


def _gone_verdict(allocation: Allocation, facts: PodFacts) -> Transition | None:
    if _bound_since(allocation, facts):
        return Transition(State.BOUND, FOUND_BOUND)
    if allocation.state is State.RESERVED:
        # A binding of a pod that is gone is refused by the API server.
        return Transition(State.RELEASED, POD_DELETED)
    if allocation.state is State.BINDING and not allocation.has_agent:
        return Transition(State.RELEASED, POD_DELETED)
    # Whether it was bound before it went, its binder may not have lived to write down.
    if not facts.node_exists:
        return Transition(
            State.RELEASED_UNCONFIRMED, f"{POD_DELETED} and its node {allocation.node} is gone"
        )
    if not allocation.has_agent:
        return Transition(State.RELEASED, f"{POD_DELETED}; its node has no HAMi agent")
    if allocation.state is State.RELEASING:
        if allocation.reason not in _SEES_NONE:
            return None
        return Transition(State.RELEASED, f"{POD_DELETED}; {AGENT_SEES_NONE}")
    return Transition(State.RELEASING, POD_DELETED)


def _has_node(allocation: Allocation, facts: PodFacts, node: NodeName) -> Transition | None:
    if allocation.state in _UNBOUND and node != allocation.node:
        return Transition(
            State.RELEASED, f"the pod was bound to {node} instead of {allocation.node}"
        )
    if allocation.state is State.BINDING:
        return Transition(State.BOUND, FOUND_BOUND)
    if allocation.state is State.RESERVED:
        return Transition(State.RELEASED, "the pod was bound without the extender")
    if allocation.state is State.BOUND and facts.started:
        return Transition(State.ALLOCATED, "its containers have started")
    answered = facts.bind_phase == PHASE_SUCCESS and not allocation.has_agent
    if allocation.state is State.BOUND and answered:
        return Transition(State.ALLOCATED, "reported by its device plugin")
    return None


def plugin_failed(allocation: Allocation, facts: PodFacts) -> bool:
    """Return whether another vendor's device plugin has refused the pod on its node."""
    return (
        not allocation.has_agent
        and allocation.state in _RUNNING
        and facts.bind_phase == PHASE_FAILED
    )


def gone_on_node(allocation: Allocation, facts: PodFacts) -> Transition | None:
    """Return the step after the agent reports that no container of the pod is left."""
    if not facts.exists:
        if allocation.state in _GRANTED:
            return Transition(State.RELEASED, f"{POD_DELETED}; {AGENT_SEES_NONE}")
        return None
    if facts.deleting and allocation.state in _RUNNING:
        return Transition(State.RELEASING, AGENT_SEES_NONE)
    return None


def overdue(allocation: Allocation, facts: PodFacts) -> Transition | None:
    """Return the step after the deadline of the state."""
    if allocation.state is State.RESERVED:
        return Transition(State.EXPIRED, "not bound in time")
    if allocation.state is State.BINDING:
        if facts.exists and facts.node == allocation.node:
            return Transition(State.BOUND, FOUND_BOUND)
        if not facts.exists:
            return _gone_verdict(allocation, facts)
        return Transition(State.EXPIRED, "the binding timed out")
    if allocation.state is State.RELEASING and not facts.exists:
        if allocation.reason in _SEES_NONE:
            return Transition(State.RELEASED, f"{POD_DELETED}; {AGENT_SEES_NONE}")
        if facts.agent_speaks and facts.node_exists:
            # A process that outlives its pod keeps its slices; the same state, a new deadline.
            return Transition(State.RELEASING, STILL_SEEN)
        return Transition(
            State.RELEASED_UNCONFIRMED,
            f"{POD_DELETED}; its node did not report its containers gone",
        )
    return None
