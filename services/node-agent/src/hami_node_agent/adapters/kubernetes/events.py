"""Warning events, as the API server takes them."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

from hamicommon.clipping import clip
from hamicommon.k8s.event_names import event_name
from hamicommon.k8s.types import Json


def warning(
    involved: dict[str, str], namespace: str, reason: str, message: str, *, node: str
) -> Json:
    """The Event object about `involved`."""
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {
        "metadata": {
            "name": event_name(involved["name"], uuid4().hex[:16]),
            "namespace": namespace,
        },
        "involvedObject": {"apiVersion": "v1", **involved},
        "type": "Warning",
        "reason": reason,
        "message": clip(message, 1024),
        "source": {"component": "hami-node-agent", "host": node},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
