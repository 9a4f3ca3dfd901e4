"""A decision made ahead is the one that the engine would make when it is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hami_scheduler.placement.decisions import ahead
from hami_scheduler.placement.decisions.ahead import DecisionsAhead
from hamicommon.domain.allocations import footprints
from hamicommon.domain.ids import GpuUuid, NodeName, PodUid
from hamicommon.domain.requests import PodRequest
from hamicommon.placement.cluster.view import ClusterView, Frozen
from hamicommon.placement.engine import Decision, decide
from hamicommon.placement.node_scores import NodeScores
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hamicommon.placement.clusters import card, cards, container, pod, view_of

NAMES = tuple(NodeName(f"n{number}") for number in range(3))
SMALL, LARGE = pod(cards(memory_mib=1000), node="spread"), pod(cards(memory_mib=3000))


def cluster() -> ClusterView:
    return view_of({name: [card(f"{name}-{k}", index=k) for k in range(2)] for name in NAMES})


def large() -> ClusterView:
    return view_of({name: [card(f"{name}-{k}", index=k) for k in range(8)] for name in NAMES})


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


def count(view: ClusterView, decisions: DecisionsAhead, decision: Decision) -> None:
    """As a reservation that is answered early."""
    assert decision.placement is not None
    before = view.version
    for taken in footprints(decision.placement.containers):
        view.shift(
            taken.uuid,
            slots=taken.slots,
            memory_mib=taken.memory_mib,
            core_percent=taken.core_percent,
        )
    decisions.counted(decision.placement, before=before, view=view)


def known(view: ClusterView) -> dict[str, object]:
    return {name: view.cards(name) for name in sorted(view.nodes)}


def test_of_pods_of_one_template_the_third_is_decided_before_it_is_asked_for(
    decided: list[PodRequest],
) -> None:
    view, decisions = cluster(), DecisionsAhead(frozen)
    for number in range(6):
        asked = replace(SMALL, uid=PodUid(str(number)), name=f"pod-{number}")
        before = len(decided)
        found, moment, was_ahead = decisions.decide(asked, view, NAMES, ())
        assert len(decided) == before + (number < 2), "asked for again"
        assert was_ahead == (number >= 2)
        assert moment.version == found.view_version == view.version
        count(view, decisions, found)
        for _ in range(2):  # of several calls at once each looks ahead
            decisions.look_ahead(view)


def test_the_more_of_them_were_of_use_the_more_are_decided_at_once(
    decided: list[PodRequest],
) -> None:
    view, decisions = large(), DecisionsAhead(frozen)
    at_once = []
    for _ in range(34):
        count(view, decisions, decisions.decide(SMALL, view, NAMES, ()).decision)
        before = len(decided)
        decisions.look_ahead(view)
        at_once.append(len(decided) - before)
    assert [each for each in at_once if each] == [1, 2, 4, 8, 8, 8, 8]

    view.shift(GpuUuid("n0-0"), slots=1, memory_mib=1, core_percent=0)
    before = len(decided)
    decisions.look_ahead(view)
    assert len(decided) == before + 1, "so many may be for nothing again"


def test_where_placements_are_not_counted_before_they_are_written_one_is_made_ahead(
    decided: list[PodRequest],
) -> None:
    view, decisions = large(), DecisionsAhead(frozen)
    for number in range(6):
        decisions.decide(SMALL, view, NAMES, ())
        view.shift(GpuUuid("n0-0"), slots=1, memory_mib=1, core_percent=0)  # a commit of its own
        before = len(decided)
        decisions.look_ahead(view)
        assert len(decided) == before + (number > 0)


def test_looking_ahead_leaves_the_view_as_it_was() -> None:
    view, decisions = large(), DecisionsAhead(frozen)
    for _ in range(12):
        count(view, decisions, decisions.decide(SMALL, view, NAMES, ()).decision)
        before = known(view)
        decisions.look_ahead(view)
        assert known(view) == before


def test_a_refusal_is_of_the_view_itself(decided: list[PodRequest]) -> None:
    view, decisions = cluster(), DecisionsAhead(frozen)
    found = decisions.decide(LARGE, view, NAMES, ()).decision
    while found.placement is not None:
        count(view, decisions, found)
        decisions.look_ahead(view)
        found = decisions.decide(LARGE, view, NAMES, ()).decision

    assert (found.view_version, found.refusal) == (
        view.version,
        decide(LARGE, view, candidates=NAMES).refusal,
    )


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


WITH_INIT = pod(
    container(cards(memory_mib=700), role="init"),
    *(cards(memory_mib=400), cards(memory_mib=200)),
    node="spread",
)
TWO_CARDS = pod(cards(count=2, memory_mib=500))
STEPS = st.one_of(
    st.tuples(st.just("burst"), st.sampled_from([SMALL, LARGE, WITH_INIT, TWO_CARDS])),
    st.tuples(st.just("ask"), st.sampled_from([SMALL, LARGE])),
    st.tuples(st.just("ahead"), st.none()),
    st.tuples(st.just("take"), st.sampled_from([f"n{n}-{k}" for n in range(3) for k in range(8)])),
    st.tuples(st.just("leave"), st.sampled_from(NAMES)),
)


@given(st.lists(STEPS, max_size=30))
def test_every_answer_is_the_engines_own(steps: list[tuple[str, object]]) -> None:
    view, decisions = large(), DecisionsAhead(frozen)

    def asked(request: PodRequest) -> Decision:
        found, moment, _ = decisions.decide(request, view, NAMES, ())
        expected = decide(request, view, candidates=NAMES)
        assert (found.placement, found.view_version) == (expected.placement, view.version)
        assert dict(found.scores) == dict(expected.scores)
        assert (found.refusal is None) == (expected.refusal is None)
        now = frozen(view, expected.scores)
        assert (moment.rows, moment.used.tolist()) == (now.rows, now.used.tolist())
        return found

    for kind, what in steps:
        if kind == "burst":
            assert isinstance(what, PodRequest)
            for _ in range(8):
                found = asked(what)
                if found.placement is not None:
                    count(view, decisions, found)
                decisions.look_ahead(view)
        elif kind == "ask":
            assert isinstance(what, PodRequest)
            asked(what)
        elif kind == "ahead":
            decisions.look_ahead(view)
        elif kind == "take":
            view.shift(GpuUuid(str(what)), slots=1, memory_mib=900, core_percent=0)
        else:
            view.remove_node(NodeName(str(what)))
