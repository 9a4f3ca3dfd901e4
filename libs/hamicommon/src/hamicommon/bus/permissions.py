"""Rights of each service on the bus; a node-agent has its own node's subjects and its own inbox.

Rendered into the server's configuration by `hamictl up` and by the manifests; tests prove that node
A reads neither B's grants nor B's replies (architecture 8), and that each service may do what its
code does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hamicommon import events
from hamicommon.bus.streams import dead_letter_subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """Subjects (with wildcards) that one user may use."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    answers: bool = False
    """May reply to the requests it receives, wherever the reply goes."""


_TOKEN = re.compile(r"[^\s.*>$]+")
SCHEDULER_USER = "hami-scheduler"
METRICS_USER = "hami-metrics"
WEBHOOK_USER = "hami-webhook"
METRICS_USAGE_CONSUMER = "hami-metrics-usage"
METRICS_REFUSALS_CONSUMER = "hami-metrics-refusals"
ASK_SUBJECT = "$SYS.REQ.USER.AUTH"
"""Where the server asks about logins (`logins.py`)."""


def agent_user(node: str) -> str:
    """The bus user of a node's agent."""
    return f"agent-{events.token_of(node)}"


def inbox_prefix(user: str) -> str:
    """Where replies to this user go; a wildcard on all inboxes would show others' replies."""
    return f"_INBOX_{user}".replace(".", "_")


def agent_permissions(node: str) -> Permissions:
    """Rights that the agent of `node` needs, and no others.

    No right on the server's own subjects: what a consumer pushes, or is asked for, the server sends
    to any subject that the question names, whatever the rights of who asks.
    """
    return Permissions(
        publish=(
            events.inventory_subject(node),
            events.reports_subject(node),
            events.usage_subject(node),
            events.limits_subject(node),
            events.snapshot_subject(node),
            events.unmanaged_subject(node),
            events.claims_subject(node),
            events.moves_subject(node),
        ),
        subscribe=(
            f"{inbox_prefix(agent_user(node))}.>",
            events.grants_subject(node),
            events.readiness_subject(node),
            events.holdings_subject(node),
        ),
        answers=True,
    )


def scheduler_permissions() -> Permissions:
    """Everything of ours: it makes the streams, and is the only one that writes the ledger."""
    return Permissions(
        publish=("hami.>", "$JS.>"),
        subscribe=("hami.>", f"{inbox_prefix(SCHEDULER_USER)}.>", ASK_SUBJECT),
        answers=True,
    )


def metrics_permissions() -> Permissions:
    """Reads usage and refusals, each with one consumer that all replicas share."""
    read = (
        (events.USAGE_STREAM, METRICS_USAGE_CONSUMER, "hami.usage.v1.*"),
        (events.EVENTS_STREAM, METRICS_REFUSALS_CONSUMER, events.ADMISSION_REFUSED_SUBJECT),
    )
    return Permissions(
        publish=tuple(
            allowed
            for stream, consumer, subject in read
            for allowed in (
                f"$JS.API.CONSUMER.CREATE.{stream}.{consumer}.{subject}",
                f"$JS.API.CONSUMER.INFO.{stream}.{consumer}",
                f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}",
                f"$JS.ACK.{stream}.{consumer}.>",
                dead_letter_subject(stream, METRICS_USER, "*"),
            )
        ),
        subscribe=(f"{inbox_prefix(METRICS_USER)}.>",),
    )


def webhook_permissions() -> Permissions:
    """Reads what is known of the cluster, publishes refusals; no grant and no report is its own.

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
                    dead_letter_subject(stream, WEBHOOK_USER, "*"),
                )
            ),
            events.ADMISSION_REFUSED_SUBJECT,
        ),
        subscribe=(f"{inbox_prefix(WEBHOOK_USER)}.>",),
    )


# Of each service, the streams into which a message of its own choice does no harm: the scheduler
# may publish everywhere, and the others are the only readers there. An inventory that the webhook
# buried would be read by the scheduler, so it is not among them; the node reports again anyway. Nor
# are limit checks: one that is sent again has a fresh time, and pods are ended on fresh ones.
_RETURNS = {
    SCHEDULER_USER: {
        events.INVENTORY_STREAM: "hami.inventory.v1.*",
        events.REPORTS_STREAM: "hami.reports.v1.*",
    },
    METRICS_USER: {
        events.USAGE_STREAM: "hami.usage.v1.*",
        events.EVENTS_STREAM: events.ADMISSION_REFUSED_SUBJECT,
    },
    WEBHOOK_USER: {events.LEDGER_STREAM: "hami.ledger.v1.>"},
}


def may_return(user: str, stream: str, subject: str) -> bool:
    """Whether what `user` buried may be published on `subject` again.

    Only the user and the stream are known for sure; `subject` is the user's own statement.
    """
    pattern = _RETURNS.get(user, {}).get(stream)
    return pattern is not None and _matches(subject, pattern)


def _matches(subject: str, pattern: str) -> bool:
    """Whether a subject without wildcards is one of `pattern`'s (`*`: one token, `>`: the rest)."""
    tokens, wanted = subject.split("."), pattern.split(".")
    if wanted[-1] == ">":
        tokens, wanted = tokens[: len(wanted)], [*wanted[:-1], "*"]
    return len(tokens) == len(wanted) and all(
        _TOKEN.fullmatch(token) is not None and each in (token, "*")
        for token, each in zip(tokens, wanted, strict=True)
    )
