"""The condition of a granted card, with what to do: one row for each that there is."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hamicommon.domain.granted_cards import (
    HEALTHY,
    IN_MIG_MODE,
    ConditionKind,
    GrantedCard,
    condition_of,
    texts_of,
)
from hamicommon.domain.ids import GpuUuid, NodeName
from hypothesis import given
from hypothesis import strategies as st

CARD = GrantedCard(
    node=NodeName("n1"),
    uuid=GpuUuid("GPU-a"),
    index=2,
    present=True,
    healthy=True,
    health_reason="",
    cordoned=False,
    mode="hami-core",
    is_instance=False,
)
HEARD = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("card", "kind", "sentence"),
    [
        (
            replace(CARD, present=False, healthy=False),
            ConditionKind.LOST,
            "card 2 of n1 (GPU-a) is lost: the node no longer reports it",
        ),
        (
            replace(CARD, present=False, healthy=False, node_gone=True),
            ConditionKind.LOST,
            "card 2 of n1 (GPU-a) is lost: the node was deleted",
        ),
        (
            replace(CARD, present=False, healthy=False, replaced_by=GpuUuid("GPU-b")),
            ConditionKind.REPLACED,
            "card 2 of n1 (GPU-a) was replaced: the node has GPU-b in its place",
        ),
        (
            replace(CARD, healthy=False, health_reason="x", replaced_by=GpuUuid("GPU-b")),
            ConditionKind.REPLACED,
            "card 2 of n1 (GPU-a) was replaced: the node has GPU-b in its place",
        ),
        (
            replace(CARD, mode="mig"),
            ConditionKind.MODE_CHANGED,
            "card 2 of n1 (GPU-a) was switched to MIG mode, and the pod was granted a slice of it",
        ),
        (
            replace(CARD, healthy=False, health_reason=IN_MIG_MODE),
            ConditionKind.MODE_CHANGED,
            "card 2 of n1 (GPU-a) was switched to MIG mode, and the pod was granted a slice of it",
        ),
        (
            replace(CARD, is_instance=True),
            ConditionKind.MODE_CHANGED,
            "card 2 of n1 (GPU-a) left MIG mode, and the pod was granted an instance of it",
        ),
        (
            replace(CARD, healthy=False, health_reason="XID 79"),
            ConditionKind.UNHEALTHY,
            "card 2 of n1 (GPU-a) is unhealthy: XID 79",
        ),
        (
            replace(CARD, node_silent=True, heard_at=HEARD),
            ConditionKind.NODE_SILENT,
            "the node-agent of n1 has not reported since 2026-11-20 10:00:00: the state of its "
            "cards and limits is unknown",
        ),
        (
            replace(CARD, cordoned=True),
            ConditionKind.CORDONED,
            "card 2 of n1 (GPU-a) is cordoned: no new pods are placed on it, and the "
            "pod keeps running",
        ),
        (CARD, ConditionKind.HEALTHY, ""),
        (replace(CARD, mode="mig", is_instance=True), ConditionKind.HEALTHY, ""),
    ],
)
def test_a_granted_card_has_its_condition(
    card: GrantedCard, kind: ConditionKind, sentence: str
) -> None:
    found = condition_of(card)

    assert (found.kind, found.sentence) == (kind, sentence)


def test_a_silent_node_is_one_text_for_all_its_cards() -> None:
    cards = [replace(CARD, index=n, node_silent=True) for n in range(8)]

    assert len(texts_of(condition_of(card) for card in cards)) == 1


@given(st.builds(GrantedCard))
def test_whatever_is_wrong_has_a_sentence_and_advice_and_what_is_right_has_none(
    card: GrantedCard,
) -> None:
    found = condition_of(card)

    assert bool(found.sentence) == bool(found.advice) == (found != HEALTHY)
    assert found.sentence == found.sentence.rstrip(".")
