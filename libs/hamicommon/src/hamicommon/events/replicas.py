"""What the replicas of the scheduler announce to each other; nothing of it is stored."""

from __future__ import annotations

from hamicommon.events.payload import Payload


class LeaderAnnounced(Payload):
    """A replica that answers the calls of kube-scheduler, others' too."""

    replica: str
    """A name that no other one has, and that it has until it ends."""
    leads: bool = True
    """False: it does not any more."""
