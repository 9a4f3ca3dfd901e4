"""Explain on one screen: where a pod is, or why it waits and what would help."""

import io
from typing import Any

import pytest
from hamictl.view.explanation import explanation
from hamictl.view.lists import cores, health, memory
from rich.console import Console


def an_answer(**changes: Any) -> dict[str, Any]:
    return {
        "outcome": "refused",
        "summary": "no card of 4 on 1 node has 9 MiB",
        "asked": ["1 NVIDIA card with 9 MiB"],
        "policy": "nodes binpack, cards spread",
        "nodes": [a_node()],
        "nodes_left_out": 0,
        "nodes_without_cards": 0,
        "counterfactuals": [{"text": "fits if nvidia.com/gpumem <= 5 MiB"}],
        "quota_users": [],
        "notes": [],
        "decided_at": "2026-11-20T10:00:00Z",
        "cards_as_of": "2026-11-20T10:00:00Z",
        "last_at": "2026-11-20T10:00:00Z",
        "repeat_count": 1,
        "retry": "kube-scheduler retries it",
        "trace_id": "abc",
        "view_version": 7,
        "attempts": [],
        "earlier": [],
    } | changes


def a_node(**changes: Any) -> dict[str, Any]:
    return {
        "node": "node-0",
        "fits": False,
        "chosen": False,
        "score": None,
        "reason": "4/4 CardInsufficientMemory",
        "text": "4 cards: at most 5 MiB free, 9 MiB wanted",
    } | changes


def screen(answer: dict[str, Any]) -> str:
    text = io.StringIO()
    console = Console(width=120, file=text)
    for part in explanation(answer, name="ns/p"):
        console.print(part, highlight=False, markup=False)
    return text.getvalue()


def test_a_refused_pod_starts_with_the_sentence_and_has_ours_beside_hamis_reason() -> None:
    shown = screen(an_answer())

    assert shown.startswith("ns/p waits: no card of 4 on 1 node has 9 MiB\n")
    assert "4 cards: at most 5 MiB free, 9 MiB wanted" in shown
    assert "4/4 CardInsufficientMemory" in shown
    assert "  - fits if nvidia.com/gpumem <= 5 MiB" in shown
    assert "Next: kube-scheduler retries it." in shown
    assert "Trace abc, view version 7." in shown


def test_a_repeated_refusal_shows_how_often_since_when_and_how_old_the_cards_are() -> None:
    shown = screen(an_answer(repeat_count=8, last_at="2026-11-20T10:05:00Z"))

    assert "Decided 8 times alike since 2026-11-20 10:00:00, last at 2026-11-20 10:05:00." in shown
    assert "Cards are shown as they were at 2026-11-20 10:00:00." in shown


def test_many_nodes_are_counted_so_that_one_screen_suffices() -> None:
    nodes = [a_node(node=f"node-{number:03}") for number in range(100)]

    shown = screen(an_answer(nodes=nodes, nodes_left_out=900, nodes_without_cards=3))

    assert "and 990 more nodes and 3 nodes without such cards" in shown
    assert len(shown.splitlines()) < 40


def test_a_placed_pod_shows_its_slices_and_the_nodes_that_it_was_chosen_from() -> None:
    share = {"container": "c", "memory_mib": 4096, "core_percent": 30, "device_uuid": "GPU-1"}
    nodes = [a_node(fits=True, chosen=True, score=1.5), a_node(node="b", fits=True, score=0.0)]
    attempt = {"node": "node-0", "state": "allocated", "devices": [share]}
    placed = an_answer(
        outcome="placed", nodes=nodes, attempts=[attempt], counterfactuals=[], retry=""
    )

    shown = screen(placed)

    assert "Holds on node-0 (allocated):\n  c: 4 GiB, 30 % cores of GPU-1" in shown
    assert "chosen   usage 1.50 of 30" in shown
    assert "fits     usage 0.00 of 30" in shown
    held = screen(an_answer(nodes=[], attempts=[{**attempt, "state": "reserved"}]))
    assert "Room on node-0, its own once others have ended:\n  c: 4 GiB" in held


def test_what_is_kept_for_whole_nodes_is_shown_apart_from_what_is_stranded() -> None:
    parts = {"cards_milli": 190.0, "whole_nodes_milli": 2000.0, "scarce_models_milli": 0.0}
    nodes = [
        a_node(fits=True, chosen=True, score=-30.0, parts=parts | {"whole_nodes_milli": 0.0}),
        a_node(node="b", fits=True, score=-2190.0, parts=parts),
        a_node(node="c", fits=True, score=-300.0, parts=parts | {"scarce_models_milli": 110.0}),
        a_node(node="d", fits=True, score=-60.0),
    ]
    shown = screen(
        an_answer(outcome="placed", nodes=nodes, policy="nodes fragmentation, cards fragmentation")
    )

    [chosen] = [line for line in shown.splitlines() if "chosen" in line]
    assert chosen.rstrip().endswith("strands 30 milli")
    assert "strands 2190 milli: 190 on its cards, +2000 for whole nodes" in shown
    assert "190 on its cards, +2000 for whole nodes, +110 for scarce models" in shown
    assert "fits     strands 60 milli" in shown


def test_a_pod_nobody_decided_about_shows_why_and_no_more() -> None:
    empty: dict[str, Any] = {
        "outcome": "undecided", "summary": "it has gates", "asked": [], "nodes": [],
        "counterfactuals": [], "decided_at": None, "cards_as_of": None, "last_at": None,
        "repeat_count": 0, "retry": "", "trace_id": "",
    }  # fmt: skip

    assert screen(an_answer(**empty)).strip() == "ns/p was never decided on: it has gates"


def test_when_nothing_alone_would_help_it_is_shown() -> None:
    assert "No single change" in screen(an_answer(counterfactuals=[]))


def test_unknown_is_shown_as_unknown_and_amounts_in_the_units_of_people() -> None:
    assert (memory(None), memory(512), memory(4096), memory(6000)) == (
        "?",
        "512 MiB",
        "4 GiB",
        "5.859 GiB",
    )
    assert (cores(0), cores(30)) == ("any cores", "30 % cores")
    assert health({"healthy": False, "health_reason": "XID 79"}) == "unhealthy: XID 79"


def test_a_pod_by_a_claim_shows_its_slice_with_the_claim_and_its_other_holders() -> None:
    share = {"container": "main", "device_uuid": "GPU-1", "memory_mib": 4096, "core_percent": 0}
    claim = share | {"claim": "shared", "request": "gpu", "together_with": ["second"]}
    held = {"state": "allocated", "node": "node-0", "devices": [share], "claims": [claim]}
    summary = "kube-scheduler allocated its ResourceClaims"

    shown = screen(an_answer(outcome="undecided", summary=summary, nodes=[], attempts=[held]))

    assert f"was never decided on: {summary}" in shown
    assert "by claim shared request gpu, together with second" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("end", "first"),
    [
        ("deleted", "ns/p was deleted at 2026-11-20 10:07:00 without having been placed."),
        ("gone", "ns/p was deleted after 2026-11-20 10:00:00, while no scheduler watched."),
        ("finished", "ns/p no longer waiting: it had finished at 2026-11-20 10:07:00."),
    ],
)
def test_a_pod_that_waits_no_longer_has_when_that_ended_and_its_last_refusal(
    end: str, first: str
) -> None:
    shown = " ".join(screen(an_answer(wait_end=end, wait_ended_at="2026-11-20T10:07:00Z")).split())

    assert shown.startswith(f"{first} Its last refusal: no card of 4 on 1 node has 9 MiB ")


def test_a_card_that_is_not_as_granted_comes_before_everything_else_and_once() -> None:
    card = {"sentence": "card 0 of n1 is lost", "advice": "Delete the pod"}

    shown = screen(an_answer(outcome="placed", cards=[card, card]))

    assert shown.splitlines()[1:3] == ["", "▲ card 0 of n1 is lost. Delete the pod."]
    assert shown.count("is lost") == 1
