"""An operator's view of an adoption."""

from __future__ import annotations

from typing import Any

from hamictl.commands.adopt import adoption
from rich.console import Console
from rich.table import Table

CARD = "GPU-aaaaaaaa-0000-0000-0000-000000000001"


def row(name: str, outcome: str, *, why: str | None = None, sentence: str = "") -> dict[str, Any]:
    share = {"container": "main", "uuid": CARD, "memory_mib": 4096, "core_percent": 30}
    return {
        "namespace": "team",
        "name": name,
        "uid": name,
        "node": "n1",
        "outcome": outcome,
        "why": why,
        "sentence": sentence,
        "slices": [] if outcome == "refused" else [share],
    }


def render_answer(**answer: Any) -> str:
    whole = {"applied": False, "pods": [], "overfull": [], "unaccounted": [], "problems": []}
    console = Console(width=200, record=True, quiet=False)
    with console.capture() as capture:
        for part in adoption(whole | answer):
            assert isinstance(part, Table | str)
            console.print(part, markup=False, highlight=False, soft_wrap=isinstance(part, str))
    return capture.get()


def test_every_pod_is_shown_with_its_slices_or_why_not() -> None:
    pods = [
        row("a", "would adopt"),
        row(
            "b", "refused", why="no-evidence", sentence="its kubelet's checkpoint does not have it"
        ),
        row("c", "held"),
    ]

    text = render_answer(pods=pods)

    assert "main: 4 GiB, 30 % cores of GPU-aaaaaaaa" in text
    assert "refused: no-evidence" in text
    assert "its kubelet's checkpoint does not have it" in text
    assert "team/c" not in text
    assert (
        "1 would be adopted, 1 in the ledger already, 1 refused; nothing was written: use --apply"
        in text
    )


def test_cards_that_hold_too_much_or_more_than_is_known_are_shown_with_what_to_do() -> None:
    full = {
        "node": "n1",
        "uuid": CARD,
        "used": {"slots": 2, "memory_mib": 8192, "core_percent": 120},
        "has": {"slots": 10, "memory_mib": 6000, "core_percent": 100},
    }
    unknown = {"node": "n1", "uuid": CARD, "pods": ["team/b"]}

    text = render_answer(
        overfull=[full], unaccounted=[unknown], problems=["node n1: no checkpoint"]
    )

    assert "has granted 8192 of 6000 MiB and 120 of 100 % of cores" in text
    assert f"kubectl annotate --overwrite node n1 hami.io/device-cordon={CARD}" in text
    assert "skipped: node n1: no checkpoint" in text


def test_an_empty_cluster_is_shown_as_one() -> None:
    assert "no pods of HAMi" in render_answer(applied=True)
