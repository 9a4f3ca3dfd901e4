"""All pods of a name, with the cards of each change, and when a pod was gone."""

from __future__ import annotations

from typing import Any

import pytest
from hamictl.output.terminal import Presentation, present
from hamictl.view.history import (
    changes,
    earlier_line,
    gone_sentence,
    uids_newest_first,
    with_cards,
)


@pytest.fixture(autouse=True)
def in_utc() -> Any:
    present(Presentation(utc=True))
    yield
    present(Presentation())


def allocation(uid: str, hour: int, ended: int | None, **more: object) -> dict[str, Any]:
    return {
        "id": f"a-{uid}-{hour}",
        "pod_uid": uid,
        "node": "n1",
        "state": "released" if ended else "allocated",
        "reason": "pod gone" if ended else "",
        "reserved_at": f"2026-01-01T{hour:02}:00:00+00:00",
        "ended_at": f"2026-01-01T{ended:02}:00:00+00:00" if ended else None,
        "devices": [{"device_uuid": "GPU-0123456789abcdef"}, {"device_uuid": "GPU-gone"}],
        **more,
    }


NEW, OLD = allocation("new", 5, None), allocation("old", 1, 2)


def test_pods_of_a_name_are_newest_first_and_the_one_that_exists_before_all() -> None:
    assert uids_newest_first([NEW, OLD, OLD], None) == ["new", "old"]
    assert uids_newest_first([NEW, OLD], "waiting") == ["waiting", "new", "old"]
    assert uids_newest_first([NEW, OLD], "new") == ["new", "old"]


def test_an_earlier_pod_is_one_line_with_its_uid_its_time_and_how_to_see_it() -> None:
    line = earlier_line("old", [NEW, allocation("old", 3, 4, node="n2"), OLD])

    assert line == (
        "old: 2026-01-01 01:00:00 to 2026-01-01 04:00:00 on n1, n2: `hamictl history old`"
    )


def test_a_change_has_the_cards_of_its_allocation() -> None:
    change = {"allocation_id": NEW["id"], "state": "bound", "previous_state": "reserved"}

    [row] = with_cards([change], [OLD, NEW], {"GPU-0123456789abcdef": 3})

    assert row["pod_uid"] == "new"
    assert row["cards"] == [
        {"node": "n1", "index": 3, "uuid": "GPU-0123456789abcdef"},
        {"node": "n1", "index": None, "uuid": "GPU-gone"},
    ]
    column = next(each for each in changes([row], "a/x").columns if each.header == "CARD")
    assert column.show(row) == "n1/3 GPU-01234567\nn1/- GPU-gone"


def test_a_change_of_an_allocation_that_is_not_among_them_has_unknown_cards() -> None:
    [row] = with_cards([{"allocation_id": "other"}], [NEW], {})

    assert row["cards"] is None


def test_a_pod_is_gone_since_its_last_grant_ended() -> None:
    assert gone_sentence([OLD, allocation("old", 3, 4)]) == (
        "It is gone since 2026-01-01 04:00:00 (released: pod gone)."
    )


@pytest.mark.parametrize("held", [[], [NEW], [NEW, OLD]])
def test_since_when_a_pod_is_gone_is_unknown_where_nothing_of_it_ended(
    held: list[dict[str, Any]],
) -> None:
    assert gone_sentence(held) == "It is gone: the cluster has no pod of this name and uid."
