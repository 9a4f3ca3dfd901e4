"""Requests for nodes (wishes), and types of nodes, as read from the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from hamicommon.domain.ids import PodUid
from hamicommon.domain.requests import HostRequest
from hamicommon.scaling.node_types import NodeType


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleWish:
    """Request for a node (wish), for which an autoscaler is asked by a placeholder pod."""

    id: int
    type: str
    number: int
    """Number among the open requests of the type; reused after the request has ended."""
    pods: Sequence[PodUid]
    """Pods that wait for the node."""
    host: HostRequest
    """CPU and memory that the pods requested when the node was first requested."""
    is_asked: bool
    """Whether the placeholder pod was created."""
    reason: str
    """Reason why the node has not joined yet, as the API server or an autoscaler reports it."""
    wanted_at: datetime
    age_s: float
    """Time since `wanted_at`, by the ledger's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownType:
    """Node type in the ledger."""

    kind: NodeType
    wrong: str
    """Description of how a node of the type differed from the type; empty if none did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Number of given-up requests for nodes of a type since one last joined."""

    count: int
    ago_s: float
    """Time since the last given-up request, by the ledger's clock."""
