"""Requests in plain English."""

from __future__ import annotations

from hamicommon.explain.wording import asked

from tests.unit.hamicommon.placement.clusters import cards


def test_more_cores_than_a_card_has_are_shown_as_what_they_are_taken_as() -> None:
    assert asked(cards(memory_mib=4096, core_percent=130)).endswith(
        "4096 MiB and 100 % of its cores"
    )
