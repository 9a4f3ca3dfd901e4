"""Rights below the server's own subjects, inboxes of clients, and returns of dead letters."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest
from hamicommon import events as subjects
from hamicommon.bus import deliveries, permissions
from hamicommon.bus.deliveries import DELIVERIES
from hamicommon.bus.feeds import SOURCES
from hamicommon.bus.permissions import (
    ASK_SUBJECT,
    FEEDS_SUBJECT,
    METRICS_USER,
    SCHEDULER_USER,
    WEBHOOK_USER,
    Permissions,
    agent_permissions,
    agent_user,
    asker_inboxes,
    may_return,
    metrics_permissions,
    scheduler_permissions,
    webhook_permissions,
)
from hamicommon.bus.streams import STREAMS, dead_letter_subject
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("user", "stream", "subject"),
    [
        ("hami-scheduler", "HAMI_INVENTORY", "hami.inventory.v1.node-1"),
        ("hami-scheduler", "HAMI_REPORTS", "hami.reports.v1.node_example"),
        ("hami-metrics", "HAMI_USAGE", "hami.usage.v1.node-1"),
        ("hami-metrics", "HAMI_EVENTS", "hami.events.v1.admission.refused"),
    ],
)
def test_a_letter_goes_back_to_the_stream_that_its_user_reads(
    user: str, stream: str, subject: str
) -> None:
    assert may_return(user, stream, subject)


@pytest.mark.parametrize(
    ("user", "stream", "subject"),
    [
        ("hami-scheduler", "HAMI_INVENTORY", "hami.inventory.v1.>"),
        ("hami-scheduler", "HAMI_INVENTORY", "hami.inventory.v1."),
        ("hami-scheduler", "HAMI_INVENTORY", "hami.inventory.v1.a.b"),
        ("hami-scheduler", "HAMI_REPORTS", "hami.inventory.v1.a"),
        # A pod may be ended on it, and when it was true is not known any more.
        ("hami-scheduler", "HAMI_LIMITS", "hami.limits.v1.a"),
        # Of an older release: the webhook buries nothing.
        ("hami-webhook", "HAMI_LEDGER", "hami.ledger.v1.cluster"),
        ("hami-webhook", "HAMI_INVENTORY", "hami.inventory.v1.a"),
        ("hami-metrics", "HAMI_GRANTS", "hami.grants.v1.a"),
        ("agent-", "HAMI_GRANTS", "hami.grants.v1.a"),
        ("agent-a", "HAMI_INVENTORY", "hami.inventory.v1.a"),
        # Of an older release: agents bury nothing.
        ("agent-a", "HAMI_GRANTS", "hami.grants.v1.a"),
        ("nobody", "HAMI_GRANTS", "hami.grants.v1.nobody"),
    ],
)
def test_a_letter_goes_nowhere_else(user: str, stream: str, subject: str) -> None:
    assert not may_return(user, stream, subject)


@given(
    st.sampled_from(["hami-scheduler", "hami-metrics", "hami-webhook", "agent-a"]),
    st.sampled_from(["HAMI_INVENTORY", "HAMI_GRANTS", "HAMI_USAGE", "HAMI_LEDGER", "HAMI_REPORTS"]),
    st.text(alphabet="hami.v1$JSAPIGRNT*> -", max_size=40),
)
def test_no_letter_reaches_the_servers_own_subjects(user: str, stream: str, subject: str) -> None:
    if may_return(user, stream, subject):
        assert subject.startswith("hami.")
        assert not set(subject) & set("$*> \t")


@pytest.mark.parametrize(
    "rights",
    [agent_permissions("a"), metrics_permissions(), webhook_permissions()],
    ids=["node-agent", "metrics", "webhook"],
)
def test_no_login_but_the_schedulers_has_a_right_on_the_servers_own_subjects(
    rights: Permissions,
) -> None:
    """An acknowledgement too is answered on any subject: on `$JS.API.STREAM.DELETE.X`."""
    own = [each for each in (*rights.publish, *rights.subscribe) if not each[0].isalpha()]
    assert [each for each in own if not each.startswith("_INBOX_")] == []


@pytest.mark.parametrize(
    ("subject", "inboxes"),
    [
        (subjects.snapshot_subject("b.example"), "_INBOX_agent-b_example."),
        (subjects.claims_subject("a"), "_INBOX_agent-a."),
        (FEEDS_SUBJECT, "_INBOX_hami-webhook."),
        (subjects.readiness_subject("a"), "_INBOX_hami-scheduler."),
        (subjects.holdings_subject("a"), "_INBOX_hami-scheduler."),
        (ASK_SUBJECT, "$SYS._INBOX."),
    ],
)
def test_an_answer_goes_to_an_inbox_of_the_only_login_that_may_ask(
    subject: str, inboxes: str
) -> None:
    assert asker_inboxes(subject) == inboxes


# --- each service has a right for every subject that its code names, in the way that it uses it


SERVICES = Path(__file__).parents[4] / "services"
NODE = "a"


@dataclass(frozen=True, kw_only=True)
class Service:
    folder: str
    user: str
    allowed: Permissions

    @property
    def source(self) -> str:
        files = sorted((SERVICES / self.folder / "src").rglob("*.py"))
        return "\n".join(file.read_text() for file in files)


ALL = [
    Service(folder="scheduler", user=SCHEDULER_USER, allowed=scheduler_permissions()),
    Service(folder="metrics", user=METRICS_USER, allowed=metrics_permissions()),
    Service(folder="webhook", user=WEBHOOK_USER, allowed=webhook_permissions()),
    Service(folder="node-agent", user=agent_user(NODE), allowed=agent_permissions(NODE)),
]
_NAMED = re.compile(r"\b(\w+_subject|\w+_SUBJECT)\b")
NO_SUBJECTS: frozenset[str] = frozenset()
"""Texts that only look like one."""
_CALLED = re.compile(r"\.(publish|request|serve)\(\s*(?:events\.)?(\w+_subject|\w+_SUBJECT)\b")
_DELIVERED = re.compile(r"\.consume(?:_all)?\(\s*([A-Z]+)\b")
_WRITTEN = re.compile(r'"(hami\.[a-z]+\.[^"\s]+)"')


def subject_of(name: str, source: str) -> str:
    """The subject of that name, of the node `a`; a service's own by its import."""
    found = getattr(subjects, name, None) or getattr(permissions, name, None)
    if found is None:
        renamed = re.search(rf"from (\S+) import (\w+) as {name}\b", source)
        assert renamed, f"{name}: where is it defined?"
        return str(getattr(import_module(renamed[1]), renamed[2]))
    if isinstance(found, str):
        return found
    return str(found(*[NODE] * len(inspect.signature(found).parameters)))


def covers(pattern: str, subject: str) -> bool:
    """Whether a right (`*`: one token, `>`: the rest) allows a subject, or a filter as it is."""
    wanted, tokens = pattern.split("."), subject.split(".")
    for at, each in enumerate(wanted):
        if each == ">":
            return len(tokens) > at
        if at >= len(tokens) or each not in ("*", tokens[at]):
            return False
    return len(wanted) == len(tokens)


def may_publish(service: Service, subject: str) -> bool:
    return any(covers(each, subject) for each in service.allowed.publish)


def may_serve(service: Service, subject: str) -> bool:
    return any(covers(each, subject) for each in service.allowed.subscribe)


def stream_of(subject: str) -> str | None:
    """The stream that keeps the subject."""
    for config in STREAMS:
        if any(covers(each, subject) for each in config.subjects or ()):
            return config.name
    return None


def may_read(service: Service, subject: str) -> bool:
    """Check for its own consumer, a delivery, or a feed; unreadable messages are buried."""
    stream = stream_of(subject)
    if stream is None:
        return False
    buries = may_publish(service, dead_letter_subject(stream, service.user, "a"))
    consumer = (f"$JS.API.CONSUMER.CREATE.{stream}.x.{subject}", f"$JS.ACK.{stream}.x.1.2.3.4.5")
    delivered = any(
        covers(each.subject, subject)
        and may_serve(service, each.deliver_subject)
        and may_publish(service, each.settled_subject)
        for each in DELIVERIES
    )
    fed = any(covers(each, subject) for _, each in SOURCES.values())
    return (
        (buries and all(may_publish(service, each) for each in consumer))
        or (buries and delivered)
        or (fed and may_publish(service, FEEDS_SUBJECT))
    )


@pytest.mark.parametrize("service", ALL, ids=lambda each: each.folder)
def test_a_service_has_a_right_for_every_subject_that_it_uses(service: Service) -> None:
    source = service.source
    called = {(how, subject_of(name, source)) for how, name in _CALLED.findall(source)}
    used = {subject_of(name, source) for name in _NAMED.findall(source) if hasattr(subjects, name)}
    used |= set(_WRITTEN.findall(source)) - NO_SUBJECTS
    used |= {getattr(deliveries, name).subject for name in _DELIVERED.findall(source)}

    assert used, "nothing was found: are the subjects named otherwise now?"
    for how, subject in called:
        may = may_serve if how == "serve" else may_publish
        assert may(service, subject), f"{service.user} may not {how} {subject}"
    for subject in used:
        ways = (may_publish, may_serve, may_read)
        assert any(may(service, subject) for may in ways), f"{service.user} may not use {subject}"
    # And an inbox for the answers, which no other service reads.
    assert may_serve(service, f"{permissions.inbox_prefix(service.user)}.x")


@pytest.mark.parametrize("service", [each for each in ALL if each.user != SCHEDULER_USER])
def test_only_the_scheduler_writes_what_is_believed_of_the_ledger(service: Service) -> None:
    for subject in (
        subjects.grants_subject(NODE),
        subjects.LEDGER_CLUSTER_SUBJECT,
        subjects.event_subject("allocation", "released"),
        "$JS.API.STREAM.DELETE.HAMI_USAGE",
        "$JS.API.CONSUMER.DELETE.HAMI_USAGE.hami-metrics-usage",
    ):
        assert not may_publish(service, subject), f"{service.user} may publish {subject}"
