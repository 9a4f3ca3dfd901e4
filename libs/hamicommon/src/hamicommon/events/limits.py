"""Findings of nodes that check limits from outside: containers beyond their grant, and since when.

A message has everything that is not in order on its node, so the last one is enough to know what is
so; all of them are kept for a day, so that no period is lost while nobody reads.
"""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from hamicommon.events.payload import Amount, Count, NodePayload
from hamicommon.events.subjects import limits_subject

LIMITS_HEARTBEAT_S = 60.0
"""Interval in which a node reports that it checks, whatever it finds."""
LIMITS_BUSY_S = 10.0
"""Interval while a container is beyond its grant."""
MAX_FINDINGS = 512
"""Findings of one message; the worst come first."""


class LimitFinding(BaseModel):
    """One container on one card, not in order."""

    model_config = ConfigDict(frozen=True)

    pod_uid: str = Field(min_length=1, max_length=64)
    namespace: str = Field(default="", max_length=63)
    pod: str = Field(default="", max_length=253)
    """Both empty where the node does not know the pod's name."""
    container: str = Field(default="", max_length=63)
    """Empty: it is not known which of the pod's."""
    uuid: str = Field(min_length=1, max_length=128)
    """The card's."""
    state: Literal["exceeded", "bypassed", "unknown"]
    since: AwareDatetime
    """The first look that found it so."""
    held_mib: Amount | None = None
    """At the last look, by the driver's report; None: the driver does not know."""
    peak_mib: Amount = 0
    granted_mib: Amount = 0
    violating: bool = False
    """The last look found it so too; otherwise its state only lasts until it was well for a
    while."""
    reason: str = Field(default="", max_length=512)


class LimitCheck(NodePayload):
    """The findings of one node at one moment."""

    subject_of = staticmethod(limits_subject)

    agent_id: str
    sequence: Count
    """Ascending per agent_id."""
    checked_at: AwareDatetime
    containers: Amount = 0
    """Containers with a grant that were compared."""
    settled: bool = True
    """False just after the agent's start: who is not in `findings` may yet be found."""
    findings: tuple[LimitFinding, ...] = Field(default=(), max_length=MAX_FINDINGS)
