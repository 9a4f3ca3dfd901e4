"""Cards of every vendor in one table, each in its own units."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hamictl.view.tables import amount, card_cores, memory, model, table
from rich.console import Console


def row(vendor: str, core: int, used: int = 0, kind: str = "X1") -> dict[str, Any]:
    return {"vendor": vendor, "type": kind, "core_percent": core, "used_core_percent": used}


@pytest.mark.parametrize(
    ("card", "text"),
    [
        pytest.param(row("NVIDIA", 100, 30), "30 of 100 %", id="percent"),
        pytest.param(row("AMD", 304, 30), "30 of 304 CUs", id="compute-units"),
        pytest.param(row("Mthreads", 16, 4), "4 of 16 16ths", id="sixteenths"),
        pytest.param(row("AWSNeuron", 3, 2), "1 of 2 NeuronCores", id="bitmask"),
        pytest.param(row("Ascend910B3", 20, 60), "60 % used, 20 AI cores", id="ai-cores"),
        pytest.param(row("Vastai", 0), "-", id="not-counted"),
    ],
)
def test_cores_are_in_the_vendors_unit(card: dict[str, Any], text: str) -> None:
    assert card_cores(card) == text


@pytest.mark.parametrize(
    ("card", "text"),
    [
        pytest.param(row("NVIDIA", 100, kind="NVIDIA A100"), "A100", id="nvidia"),
        pytest.param(row("DCU", 100, kind="DCU-Z100"), "DCU-Z100", id="named-in-the-type"),
        pytest.param(row("AMD", 304, kind="MI300X"), "AMD MI300X", id="not-named"),
    ],
)
def test_a_model_names_its_vendor(card: dict[str, Any], text: str) -> None:
    assert model(card) == text


def test_memory_that_is_not_counted_is_a_dash() -> None:
    assert amount(memory(0), memory(0)) == "-"
    assert amount(memory(512), memory(2048)) == "512 MiB of 2 GiB"


def test_a_cell_of_a_hostile_sender_is_shown_and_not_obeyed() -> None:
    console = Console(width=120, file=io.StringIO(), force_terminal=True)

    console.print(table("", ("REASON",), [("[bold]update[/] :smile: \x1b]0;owned\x07",)]))

    printed = console.file.getvalue()
    assert "[bold]update[/] :smile: \\x1b]0;owned\\x07" in printed
