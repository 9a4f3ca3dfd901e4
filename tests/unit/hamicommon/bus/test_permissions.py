"""Where a dead letter may go back to, by who buried it."""

from __future__ import annotations

import pytest
from hamicommon.bus.permissions import may_return
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("user", "stream", "subject"),
    [
        ("hami-scheduler", "HAMI_INVENTORY", "hami.inventory.v1.node-1"),
        ("hami-scheduler", "HAMI_REPORTS", "hami.reports.v1.node_example"),
        ("hami-metrics", "HAMI_USAGE", "hami.usage.v1.node-1"),
        ("hami-webhook", "HAMI_LEDGER", "hami.ledger.v1.quota.team-a"),
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
        ("hami-webhook", "HAMI_LEDGER", "hami.ledger.v1"),
        ("hami-webhook", "HAMI_LEDGER", "hami.ledger.v1.$x"),
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
