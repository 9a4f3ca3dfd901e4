"""A refused node in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import NodeName
from hamicommon.explain.answer import Findings, findings
from hamicommon.explain.counterfactuals import Circumstances
from hamicommon.explain.record import DecisionRecord
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.engine import decide
from hamicommon.placement.rules import AGENT_SILENT

from tests.unit.hamicommon.explain.test_counterfactuals import NAMES
from tests.unit.hamicommon.placement.clusters import card, cards, pod, view_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("usages", "text"),
    [
        pytest.param([card("a")], "has 1 card of NVIDIA, 2 wanted", id="one"),
        pytest.param(
            [card(name, vendor="DCU") for name in "abc"],
            "has no card of NVIDIA, 2 wanted",
            id="another vendor's",
        ),
        pytest.param(
            [card("a", used=(1, 7999, 0)), card("b", used=(1, 7999, 0))],
            "2 cards: at most 1 MiB free, 4 MiB wanted",
            id="too full",
        ),
    ],
)
def test_a_node_shows_what_it_lacks_of_the_vendor_that_is_asked_for(
    usages: Sequence[DeviceUsage], text: str
) -> None:
    request, view = pod(cards(memory_mib=4, count=2)), view_of({"n": usages})
    refusal = decide(request, view).refusal
    assert refusal is not None

    found = findings(
        DecisionRecord(
            request=request,
            outcome="refused",
            view=view,
            node=None,
            reasons=refusal.reasons,
            message="",
            summary="",
            candidates=1,
            decided_at=NOW,
            detail_at=NOW,
            last_at=NOW,
            repeat_count=1,
            view_version=view.version,
            trace_id="",
        ),
        Circumstances(holdings=(), unhealthy_since={}, names=NAMES),
        ClusterView,
    )

    assert [(one.node, one.text) for one in found.nodes] == [(NodeName("n"), text)]


def test_a_node_whose_agent_is_silent_is_no_matter_of_amounts() -> None:
    """Nothing is advised that would not help, and the engine judges nothing otherwise."""
    full = [card("b", used=(1, 8000, 0))]
    request = pod(cards(memory_mib=4))
    view = view_of({"silent": [card("a")], "full": full})
    refusal = decide(request, view_of({"full": full})).refusal
    assert refusal is not None

    def explained(reasons: dict[NodeName, str]) -> Findings:
        return findings(
            DecisionRecord(
                request=request,
                outcome="refused",
                view=view,
                node=None,
                reasons=reasons,
                message="",
                summary="",
                candidates=len(reasons),
                decided_at=NOW,
                detail_at=NOW,
                last_at=NOW,
                repeat_count=1,
                view_version=view.version,
                trace_id="",
            ),
            Circumstances(holdings=(), unhealthy_since={}, names=NAMES),
            ClusterView,
        )

    alone = explained({NodeName("silent"): AGENT_SILENT})
    assert [(one.fits, one.text) for one in alone.nodes] == [
        (False, "fits, but its node-agent is silent")
    ]
    assert (list(alone.changes), list(alone.notes)) == ([], [])

    beside = explained({NodeName("silent"): AGENT_SILENT, **refusal.reasons})
    assert {one.node: one.reason for one in beside.nodes} == {
        "silent": AGENT_SILENT,
        **refusal.reasons,
    }
    assert list(beside.notes) == []
    assert list(beside.changes) == list(explained(dict(refusal.reasons)).changes)


def test_a_node_that_was_not_offered_is_not_shown_beside_offered_nodes_without_cards() -> None:
    """A selector of the pod leaves out the node whose cards would fit."""
    view = view_of({"excluded": [card("a")]})
    found = findings(
        DecisionRecord(
            request=pod(cards(memory_mib=4)),
            outcome="refused",
            view=view,
            node=None,
            reasons={},
            unregistered=[NodeName("cpu-only")],
            unregistered_count=1,
            message="",
            summary="",
            candidates=1,
            decided_at=NOW,
            detail_at=NOW,
            last_at=NOW,
            repeat_count=1,
            view_version=view.version,
            trace_id="",
        ),
        Circumstances(holdings=(), unhealthy_since={}, names=NAMES),
        ClusterView,
    )

    assert (list(found.nodes), list(found.changes)) == ([], [])
