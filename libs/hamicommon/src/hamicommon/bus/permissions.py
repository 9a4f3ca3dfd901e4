"""What a node-agent may do on the bus: its own node's subjects, its own consumer, its own inbox;
and what the webhook may, which reads.

Rendered into the server's configuration by `hamictl up` and by the manifests; a test proves that
node A reads neither B's grants nor B's replies (architecture section 8).
"""

from __future__ import annotations

from dataclasses import dataclass

from hamicommon import events
from hamicommon.bus.streams import DEAD_LETTERS_SUBJECT


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """Subjects (with wildcards) that one user may use."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    answers: bool = False
    """May reply to the requests it receives, wherever the reply goes."""


def agent_user(node: str) -> str:
    """The bus user of a node's agent; also the name of its consumer."""
    return f"agent-{events.token_of(node)}"


def inbox_prefix(user: str) -> str:
    """Where replies to this user go; a wildcard on all inboxes would show others' replies."""
    return f"_INBOX_{user}".replace(".", "_")


def agent_permissions(node: str) -> Permissions:
    """What the agent of `node` needs, and nothing else."""
    consumer = agent_user(node)
    stream = events.GRANTS_STREAM
    return Permissions(
        publish=(
            events.inventory_subject(node),
            events.reports_subject(node),
            events.usage_subject(node),
            events.snapshot_subject(node),
            events.unmanaged_subject(node),
            events.moves_subject(node),
            f"$JS.API.CONSUMER.CREATE.{stream}.{consumer}.{events.grants_subject(node)}",
            f"$JS.API.CONSUMER.INFO.{stream}.{consumer}",
            f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}",
            f"$JS.ACK.{stream}.{consumer}.>",
            f"{DEAD_LETTERS_SUBJECT}.{stream}",
        ),
        subscribe=(
            f"{inbox_prefix(consumer)}.>",
            events.readiness_subject(node),
            events.holdings_subject(node),
        ),
        answers=True,
    )


WEBHOOK_USER = "hami-webhook"


def webhook_permissions() -> Permissions:
    """Reads what is known of the cluster, says whom it refused; no grant and no report is its own.

    Every replica has consumers of its own, which the server forgets when nobody pulls.
    """
    read = (events.INVENTORY_STREAM, events.LEDGER_STREAM)
    return Permissions(
        publish=(
            *(
                subject
                for stream in read
                for subject in (
                    f"$JS.API.CONSUMER.CREATE.{stream}.>",
                    f"$JS.API.CONSUMER.INFO.{stream}.*",
                    f"$JS.API.CONSUMER.MSG.NEXT.{stream}.*",
                    f"$JS.ACK.{stream}.>",
                    f"{DEAD_LETTERS_SUBJECT}.{stream}",
                )
            ),
            events.ADMISSION_REFUSED_SUBJECT,
        ),
        subscribe=(f"{inbox_prefix(WEBHOOK_USER)}.>",),
    )
