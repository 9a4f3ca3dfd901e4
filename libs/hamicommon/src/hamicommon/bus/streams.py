"""The JetStream streams with their limits, created idempotently by the services that may.

Agents may not: a node's credentials reach its own subjects only (architecture section 8).
"""

from __future__ import annotations

from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import BadRequestError

from hamicommon import events

_HOUR_S = 3600.0
_DAY_S = 24 * _HOUR_S
_MIB = 1024 * 1024
# The server drops a message whose id it saw within this window.
_DUPLICATE_WINDOW_S = 120.0

DEAD_LETTERS_STREAM = "HAMI_DEAD_LETTERS"
DEAD_LETTERS_SUBJECT = "hami.dead.v1"


def _stream(
    name: str, subject: str, *, max_age_s: float, max_bytes: int, per_subject: int = -1
) -> StreamConfig:
    return StreamConfig(
        name=name,
        subjects=[subject],
        retention=RetentionPolicy.LIMITS,
        storage=StorageType.FILE,
        discard=DiscardPolicy.OLD,
        max_age=max_age_s,
        max_bytes=max_bytes,
        max_msgs_per_subject=per_subject,
        duplicate_window=_DUPLICATE_WINDOW_S,
    )


STREAMS = (
    # The last inventory of each node is all that anybody needs.
    _stream(
        events.INVENTORY_STREAM,
        "hami.inventory.v1.*",
        max_age_s=_DAY_S,
        max_bytes=256 * _MIB,
        per_subject=1,
    ),
    # An agent that was away longer than this asks for the snapshot.
    _stream(events.GRANTS_STREAM, "hami.grants.v1.*", max_age_s=_HOUR_S, max_bytes=256 * _MIB),
    _stream(events.REPORTS_STREAM, "hami.reports.v1.*", max_age_s=_DAY_S, max_bytes=256 * _MIB),
    _stream(events.USAGE_STREAM, "hami.usage.v1.*", max_age_s=_HOUR_S, max_bytes=512 * _MIB),
    _stream(events.EVENTS_STREAM, "hami.events.v1.>", max_age_s=_DAY_S, max_bytes=512 * _MIB),
    _stream(
        DEAD_LETTERS_STREAM, f"{DEAD_LETTERS_SUBJECT}.*", max_age_s=7 * _DAY_S, max_bytes=64 * _MIB
    ),
)


async def ensure_streams(js: JetStreamContext) -> None:
    """Creates what is missing and brings limits up to date."""
    for config in STREAMS:
        try:
            await js.add_stream(config)
        except BadRequestError:
            # It exists with other limits: those above are the ones that count.
            await js.update_stream(config)
