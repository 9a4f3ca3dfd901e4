"""Cards that came nearest: what lacks the least first, from the stored decision."""

from __future__ import annotations

from typing import Any

from hamictl.view.explanation import NEAREST_SHOWN, near_misses, near_misses_table
from rich.console import Console


def a_card(index: int, **changes: Any) -> dict[str, Any]:
    given = {"uuid": f"GPU-{index}", "index": index, "fits": False}
    refused = {"reason": "CardInsufficientMemory", "text": f"card {index} is short"}
    amounts = {"requested": 100, "available": 50, "unit": "MiB"}
    return {**given, **refused, **amounts, **changes}


def test_what_lacks_the_least_is_first_and_what_no_amount_helps_last() -> None:
    wrong_type = {"requested": None, "available": None, "unit": None}
    answer = {
        "nodes": [
            {"node": "n1", "cards": [a_card(0, **wrong_type), a_card(1, available=98)]},
            {"node": "n2", "cards": [a_card(2, requested=30, available=0, unit="%")]},
            {"node": "n3", "cards": [a_card(3, fits=True)]},
            {"node": "n4", "cards": None},
        ]
    }
    found = near_misses(answer)

    assert [(one.node, one.card, one.short) for one in found] == [
        ("n1", "1", "2 MiB"),
        ("n1", "0", ""),
        ("n2", "2", "30 %"),
    ]


def test_the_table_has_the_nearest_and_how_many_there_are() -> None:
    cards = [a_card(index, available=index) for index in range(NEAREST_SHOWN + 2)]
    console = Console(width=120, record=True, file=None, quiet=False)
    with console.capture() as printed:
        console.print(near_misses_table(near_misses({"nodes": [{"node": "n", "cards": cards}]})))

    assert f"of {NEAREST_SHOWN + 2} refused" in printed.get()
    assert printed.get().count("GPU-") == NEAREST_SHOWN
