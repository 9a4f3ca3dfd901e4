"""Each service has a right for every subject that its code names, in the way that it uses it."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest
from hamicommon.bus import deliveries, permissions
from hamicommon.bus.deliveries import DELIVERIES
from hamicommon.bus.feeds import SOURCES
from hamicommon.bus.permissions import (
    FEEDS_SUBJECT,
    METRICS_USER,
    SCHEDULER_USER,
    WEBHOOK_USER,
    Permissions,
    agent_permissions,
    agent_user,
    metrics_permissions,
    scheduler_permissions,
    webhook_permissions,
)
from hamicommon.bus.streams import STREAMS, dead_letter_subject
from hamicommon.events import subjects

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
    """The stream that keeps it."""
    for config in STREAMS:
        if any(covers(each, subject) for each in config.subjects or ()):
            return config.name
    return None


def may_read(service: Service, subject: str) -> bool:
    """By a consumer of its own, a delivery, or a feed; what can't be read is buried."""
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
    # And an inbox for the answers, which nobody else reads.
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
