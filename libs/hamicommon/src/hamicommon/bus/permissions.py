"""Permissions of each service on the bus; a node-agent may use its own node's subjects only.

`hamictl up` and the manifests render them into the server's configuration. Tests prove that node A
reads neither B's grants nor B's replies (architecture 8), and that each service has the rights that
its code needs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hamicommon import events
from hamicommon.bus.deliveries import DELIVERIES
from hamicommon.bus.streams import dead_letter_subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """Subjects, with wildcards, that one user may publish and subscribe."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    answers: bool = False
    """Whether the user may reply to requests that it receives, on any subject."""


_TOKEN = re.compile(r"[^\s.*>$]+")
SCHEDULER_USER = "hami-scheduler"
METRICS_USER = "hami-metrics"
WEBHOOK_USER = "hami-webhook"
ASK_SUBJECT = "$SYS.REQ.USER.AUTH"
"""Subject on which the server asks about logins (`logins.py`)."""
FEEDS_SUBJECT = "hami.feeds.v1.webhook"
"""Subject on which the webhook asks for feeds (`feeds.py`)."""
_AGENTS_QUESTIONS = re.compile(r"hami\.grants\.(snapshot|claims)\.([^.]+)")


def agent_user(node: str) -> str:
    """Return the bus user of a node's agent."""
    return f"agent-{events.token_of(node)}"


def inbox_prefix(user: str) -> str:
    """Return the prefix of this user's inboxes; a wildcard on all would show others' replies."""
    return f"_INBOX_{user}".replace(".", "_")


def asker_inboxes(subject: str) -> str:
    """Return the prefix of the inboxes of the only user that may ask on `subject`.

    An answer that went elsewhere would be a message with the rights of who answers, on a subject
    that the asker chose.
    """
    if subject == ASK_SUBJECT:
        return "$SYS._INBOX."
    if found := _AGENTS_QUESTIONS.fullmatch(subject):
        user = agent_user(found[2])
    else:
        user = WEBHOOK_USER if subject == FEEDS_SUBJECT else SCHEDULER_USER
    return f"{inbox_prefix(user)}."


def agent_permissions(node: str) -> Permissions:
    """Permissions that the agent of `node` needs.

    Only the scheduler has rights on the server's own subjects (`deliveries`): the server sends
    messages and answers of a consumer to any subject that the request names, whatever the rights of
    the requester.
    """
    return Permissions(
        publish=(
            events.inventory_subject(node),
            events.reports_subject(node),
            events.usage_subject(node),
            events.limits_subject(node),
            events.snapshot_subject(node),
            events.claims_subject(node),
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
    """Permissions of the scheduler, all our subjects: it makes streams and writes the ledger."""
    return Permissions(
        publish=("hami.>", "$JS.>"),
        subscribe=("hami.>", f"{inbox_prefix(SCHEDULER_USER)}.>", ASK_SUBJECT),
        answers=True,
    )


def metrics_permissions() -> Permissions:
    """Permissions of the metrics service: read usage and refusals that are delivered to it."""
    return Permissions(
        publish=tuple(
            allowed
            for each in DELIVERIES
            for allowed in (
                each.settled_subject,
                dead_letter_subject(each.stream, METRICS_USER, "*"),
            )
        ),
        subscribe=(
            f"{inbox_prefix(METRICS_USER)}.>",
            *(each.deliver_subject for each in DELIVERIES),
        ),
    )


def webhook_permissions() -> Permissions:
    """Permissions of the webhook: ask for facts about the cluster, and publish refusals."""
    return Permissions(
        publish=(FEEDS_SUBJECT, events.ADMISSION_REFUSED_SUBJECT),
        subscribe=(f"{inbox_prefix(WEBHOOK_USER)}.>",),
    )


# By service, the streams into which a message that it chooses does no harm: the scheduler may
# publish everywhere, and metrics is the only reader of its streams. Limit checks are excluded: one
# that is sent again has a fresh time, and fresh ones can end pods.
_RETURNS = {
    SCHEDULER_USER: {
        events.INVENTORY_STREAM: "hami.inventory.v1.*",
        events.REPORTS_STREAM: "hami.reports.v1.*",
    },
    METRICS_USER: {
        events.USAGE_STREAM: "hami.usage.v1.*",
        events.EVENTS_STREAM: events.ADMISSION_REFUSED_SUBJECT,
    },
}


def may_return(user: str, stream: str, subject: str) -> bool:
    """Whether a dead letter of `user` may be published on `subject` again.

    Only the user and the stream are known for sure; `subject` is the user's own statement.
    """
    pattern = _RETURNS.get(user, {}).get(stream)
    return pattern is not None and _matches(subject, pattern)


def _matches(subject: str, pattern: str) -> bool:
    """Whether a subject matches `pattern` (`*`: one token, `>`: all that follow)."""
    tokens, wanted = subject.split("."), pattern.split(".")
    if wanted[-1] == ">":
        tokens, wanted = tokens[: len(wanted)], [*wanted[:-1], "*"]
    return len(tokens) == len(wanted) and all(
        _TOKEN.fullmatch(token) is not None and each in (token, "*")
        for token, each in zip(tokens, wanted, strict=True)
    )
