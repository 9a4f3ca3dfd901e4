"""Wishes for nodes, as the ledger has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from hamicommon.domain.ids import PodUid
from hamicommon.domain.requests import HostRequest
from hamicommon.scaling.node_types import NodeType


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleWish:
    """A node that is wanted."""

    id: int
    type: str
    number: int
    """Number among the open wishes of its type; free again afterwards."""
    pods: Sequence[PodUid]
    """Pods that it is wanted for."""
    host: HostRequest
    """Host amounts that they asked for when it was first wanted."""
    is_asked: bool
    """Whether its placeholder was made."""
    reason: str
    """Why it is not there yet, as the API server or an autoscaler reports."""
    wanted_at: datetime
    age_s: float
    """Time since then, by the ledger's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownType:
    """A type of nodes that the ledger knows."""

    kind: NodeType
    wrong: str
    """How a node of it differed from it; empty: none did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Wishes of a type that were given up since one of its nodes came."""

    count: int
    ago_s: float
    """Time since the last one, by the ledger's clock."""
