"""Cards of every vendor in one table, each in its own units."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hamictl.view.lists import (
    amount,
    card_cores,
    claims_of,
    devices,
    memory,
    model,
    slice_lines,
    table,
)
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


def test_a_room_is_named_beside_what_is_granted() -> None:
    card = {"used_memory_mib": 3072, "memory_mib": 2048, "room_memory_mib": 1024}
    shown = next(each for each in devices([], None).columns if each.header == "MEMORY")
    assert shown.show(card) == "2 GiB of 2 GiB, room for 1 GiB"


def test_a_cell_of_a_hostile_sender_is_shown_and_not_obeyed() -> None:
    console = Console(width=120, file=io.StringIO(), force_terminal=True)

    console.print(table("", ("REASON",), [("[bold]update[/] :smile: \x1b]0;owned\x07",)]))

    printed = console.file.getvalue()
    assert "[bold]update[/] :smile: \\x1b]0;owned\\x07" in printed


def make_claim(**changes: Any) -> dict[str, Any]:
    return {
        "container": "main",
        "device_uuid": "GPU-1",
        "memory_mib": 4096,
        "core_percent": 30,
        "claim": "shared",
        "request": "gpu",
        "share_id": "s-1",
        "together_with": [],
    } | changes


def test_a_slice_by_a_claim_names_claim_and_request_and_who_else_holds_it() -> None:
    own = {"container": "main", "device_uuid": "GPU-1", "memory_mib": 4096, "core_percent": 30}

    [alone] = slice_lines({"devices": [own], "claims": [make_claim()]})
    [together] = slice_lines({"devices": [], "claims": [make_claim(together_with=["a", "b"])]})

    assert alone == "main: 4 GiB, 30 % cores of GPU-1, by claim shared request gpu"
    assert together == f"{alone}, together with a, b"


def test_slices_by_limits_and_those_of_a_scheduler_without_claims_are_as_before() -> None:
    own = {"container": "main", "device_uuid": "GPU-1", "memory_mib": 4096, "core_percent": 0}

    for row in ({"devices": [own], "claims": []}, {"devices": [own]}):
        assert slice_lines(row) == ["main: 4 GiB, any cores of GPU-1"]


def test_history_names_claim_request_and_share_where_the_grant_came_by_claims() -> None:
    by_two = {"claims": [make_claim(), make_claim(container="other", request="big", share_id="")]}

    assert claims_of({"detail": by_two}) == (
        "main: shared request gpu share s-1\nother: shared request big"
    )
    assert [claims_of({"detail": each}) for each in ({}, None, {"ids": ["x"]})] == [""] * 3
