"""Rights below the server's own subjects, inboxes of who asks, and ways back of dead letters."""

from __future__ import annotations

import pytest
from hamicommon.bus.permissions import (
    ASK_SUBJECT,
    FEEDS_SUBJECT,
    Permissions,
    agent_permissions,
    asker_inboxes,
    may_return,
    metrics_permissions,
    webhook_permissions,
)
from hamicommon.events import subjects
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
