"""A decision made ahead is the one that the engine would make when it is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hami_scheduler.placement.decisions import ahead
from hami_scheduler.placement.decisions.ahead import DecisionsAhead
from hamicommon.domain.ids import GpuUuid, NodeName, PodUid
from hamicommon.domain.requests import PodRequest
from hamicommon.placement.cluster.view import ClusterView, Frozen
from hamicommon.placement.engine import Decision, decide
from hamicommon.placement.node_scores import NodeScores
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hamicommon.placement.clusters import card, cards, pod, view_of

NAMES = tuple(NodeName(f"n{number}") for number in range(3))
SMALL, LARGE = pod(cards(memory_mib=1000), node="spread"), pod(cards(memory_mib=3000))


def cluster() -> ClusterView:
    return view_of({name: [card(f"{name}-{k}", index=k) for k in range(2)] for name in NAMES})


def frozen(view: ClusterView, scores: NodeScores) -> Frozen:
    return view.frozen([name for name, _ in scores.best(1)])


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[PodRequest]:
    """Requests that the engine was asked about."""
    asked: list[PodRequest] = []

    def noted(request: PodRequest, *args: object, **named: object) -> Decision:
        asked.append(request)
        return decide(request, *args, **named)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(ahead, "decide", noted)
    return asked


def take(view: ClusterView, decision: Decision, memory_mib: int) -> None:
    assert decision.placement is not None
    [share] = decision.placement.containers[0].shares
    view.shift(share.uuid, slots=1, memory_mib=memory_mib, core_percent=0)


def test_of_pods_of_one_template_the_third_is_decided_before_it_is_asked_for(
    decided: list[PodRequest],
) -> None:
    view, decisions = cluster(), DecisionsAhead(frozen)
    for number in range(4):
        asked = replace(SMALL, uid=PodUid(str(number)), name=f"pod-{number}")
        before = len(decided)
        found, moment, was_ahead = decisions.decide(asked, view, NAMES, ())
        assert len(decided) == before + (number < 2), "asked for again"
        assert was_ahead == (number >= 2)
        assert moment.version == view.version
        take(view, found, 1000)
        for _ in range(2):  # of several calls at once each looks ahead
            decisions.look_ahead(view)
    assert len(decided) == 5


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param("pod", id="another-pod"),
        pytest.param("names", id="other-nodes"),
        pytest.param("cards", id="cards-left-out"),
        pytest.param("view", id="a-card-was-taken-since"),
    ],
)
def test_it_counts_for_that_question_on_that_view_alone(
    decided: list[PodRequest], changed: str
) -> None:
    view, decisions = cluster(), DecisionsAhead(frozen)
    for _ in range(2):
        decisions.decide(SMALL, view, NAMES, ())
    decisions.look_ahead(view)
    request = replace(SMALL, containers=LARGE.containers) if changed == "pod" else SMALL
    names = NAMES[:1] if changed == "names" else NAMES
    without = [GpuUuid("n0-0")] if changed == "cards" else []
    if changed == "view":
        view.shift(GpuUuid("n0-0"), slots=1, memory_mib=1000, core_percent=0)
    decided.clear()

    found, _, was_ahead = decisions.decide(request, view, names, without)

    assert (decided, was_ahead) == ([request], False)
    assert (
        found.placement == decide(request, view, candidates=names, without_cards=without).placement
    )


def test_what_goes_by_the_usual_pods_is_not_decided_ahead(decided: list[PodRequest]) -> None:
    view, decisions = cluster(), DecisionsAhead(frozen)
    request = pod(cards(memory_mib=1000), node="fragmentation")
    for _ in range(2):
        decisions.decide(request, view, NAMES, ())
        decisions.look_ahead(view)

    assert len(decided) == 2


STEPS = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from([SMALL, LARGE])),
    st.tuples(st.just("ahead"), st.none()),
    st.tuples(st.just("take"), st.sampled_from([f"n{n}-{k}" for n in range(3) for k in range(2)])),
    st.tuples(st.just("leave"), st.sampled_from(NAMES)),
)


@given(st.lists(STEPS, max_size=30))
def test_every_answer_is_the_engines_own(steps: list[tuple[str, object]]) -> None:
    view, decisions = cluster(), DecisionsAhead(frozen)
    for kind, what in steps:
        if kind == "ask":
            assert isinstance(what, PodRequest)
            found, *_ = decisions.decide(what, view, NAMES, ())
            expected = decide(what, view, candidates=NAMES)
            assert (found.placement, found.view_version) == (expected.placement, view.version)
            assert dict(found.scores) == dict(expected.scores)
            assert (found.refusal is None) == (expected.refusal is None)
        elif kind == "ahead":
            decisions.look_ahead(view)
        elif kind == "take":
            view.shift(GpuUuid(str(what)), slots=1, memory_mib=900, core_percent=0)
        else:
            view.remove_node(NodeName(str(what)))
