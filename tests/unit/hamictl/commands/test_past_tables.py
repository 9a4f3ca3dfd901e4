"""Output of usage, showback, who and pending, at 80 and 200 columns and in ASCII."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hamictl.commands import showback as bill_rows
from hamictl.commands.named import HELD, WAITING
from hamictl.commands.usage import COLUMNS
from hamictl.output import render
from hamictl.output.records import Records
from hamictl.output.terminal import Presentation, present
from hamictl.questions import Answered
from hamictl.view.named import records_of
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

GIB = 1 << 30
BILL: dict[str, Any] = {
    "basis": "memory",
    "currency": "EUR",
    "prices": "v3",
    "card_s": 360_000,
    "lines": [
        {"namespace": "nlp", "kind": "held", "type": "A100", "card_s": 90_000, "cost": "62.50"},
        {"namespace": "nlp", "kind": "held", "type": "L40S", "card_s": 36_000, "cost": "10.00"},
        {"namespace": "vision", "kind": "held", "type": "A100", "card_s": 180_000, "cost": None},
        {"namespace": None, "kind": "idle", "type": "A100", "card_s": 54_000, "cost": "37.50"},
    ],
}


def records(question: str, row: dict[str, Any], columns: tuple[str, ...]) -> Records:
    answer = Answered(
        question=question,
        title="",
        as_of="2026-11-20T14:05:00Z",
        rows=[row],
        unknown=frozenset({"used_memory_bytes", "used_core_ratio"}),
        complete=True,
    )
    return records_of(answer, columns=columns)


WHO = records(
    "what-runs-where",
    {
        **dict.fromkeys(HELD),
        "reserved_at": "2026-11-20T13:40:02Z",
        "namespace": "ads",
        "pod_name": "infer-7",
        "container": "main",
        "node": "n014",
        "card_index": 3,
        "memory_bytes": 14 * GIB,
        "core_ratio": 0.2,
        "state": "allocated",
        "reason": "",
        "pod_uid": "77aa",
    },
    HELD,
)
PENDING = records(
    "waiting-pods",
    {
        **dict.fromkeys(WAITING),
        "namespace": "nlp",
        "pod_name": "train-3",
        "card_count": 1,
        "memory_bytes": 40 * GIB,
        "core_ratio": 0.3,
        "since_at": "2026-11-20T13:24:00Z",
        "last_at": "2026-11-20T14:05:10Z",
        "attempt_count": 12,
        "ahead_count": 0,
        "summary": "no card has 40 GiB free → 38.5 GiB is the most",
        "reason_code": "CardInsufficientMemory",
    },
    WAITING,
)
USAGE = records(
    "pod-usage",
    {
        **dict.fromkeys(COLUMNS["pod"]),
        "namespace": "nlp",
        "pod_name": "train-2",
        "container": "main",
        "node": "n1",
        "card_index": 0,
        "memory_bytes": 28 * GIB,
        "used_memory_max_bytes": 27 * GIB,
        "core_ratio": 0.3,
        "sample_count": 0,
    },
    COLUMNS["pod"],
)
SHOWBACK = bill_rows.bill_records(BILL, by_type=False, as_of="2026-11-20T14:05:00Z")
GOLDEN = {
    ("showback", 80): (
        "NAMESPACE  KIND  CARD-HOURS  SHARE   COST EUR\n"
        "vision     held  50.00       50.0 %  ?\n"
        "nlp        held  35.00       35.0 %  72.50\n"
        "-          idle  15.00       15.0 %  37.50\n"
    ),
}
VERBS = {"who": WHO, "pending": PENDING, "usage": USAGE, "showback": SHOWBACK}


@pytest.fixture(autouse=True)
def in_utc() -> Any:
    present(Presentation(utc=True))
    yield
    present(Presentation())


def printed(found: Records, width: int, **how: bool) -> str:
    columns = [column for column in found.columns if not column.wide]
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(render.grid(columns, found.rows, Presentation(utc=True, **how)))
    assert isinstance(console.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


@pytest.mark.parametrize(("verb", "width"), GOLDEN)
def test_a_verb_prints_this(verb: str, width: int) -> None:
    assert printed(VERBS[verb], width) == GOLDEN[verb, width]


@pytest.mark.parametrize("verb", VERBS)
def test_80_columns_fold_and_200_hold_a_row_in_a_line(verb: str) -> None:
    narrow, wide = printed(VERBS[verb], 80), printed(VERBS[verb], 200)

    assert max(map(len, narrow.splitlines())) <= 80
    assert len(wide.splitlines()) == len(VERBS[verb].rows) + 1


@pytest.mark.parametrize("verb", VERBS)
def test_ascii_is_ascii_and_keeps_every_text(verb: str) -> None:
    plain, whole = printed(VERBS[verb], 200, ascii_only=True), printed(VERBS[verb], 200)

    assert plain.isascii()
    assert [part for part in whole.split() if part.isascii()] == [
        part for part in plain.split() if part in whole.split()
    ]


def test_the_sum_is_compared_with_the_cards_own_time() -> None:
    exact = {"agrees": True, "card_s": 360_000}

    assert bill_rows.sum_sentence(BILL, exact).endswith("the cards' own time, to the second")
    assert "own time is 101.00" in bill_rows.sum_sentence(BILL, {**exact, "card_s": 363_600})
    assert bill_rows.sum_sentence(BILL, None).endswith("is unknown")


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("", ("2026-11-01", "2026-11-20")),
        ("2026-10", ("2026-10-01", "2026-11-01")),
        ("2025-12", ("2025-12-01", "2026-01-01")),
        ("2026-12", None),
        ("26-1", None),
    ],
)
def test_a_month_begins_and_ends_in_utc(text: str, span: tuple[str, str] | None) -> None:
    now = datetime(2026, 11, 20, tzinfo=UTC)

    found = bill_rows.month_of(text, now)

    assert found == (span and tuple(datetime.fromisoformat(f"{day}T00:00Z") for day in span))


_LINE = st.fixed_dictionaries(
    {
        "namespace": st.sampled_from(["a", "b", None]),
        "kind": st.sampled_from(bill_rows.KINDS),
        "type": st.sampled_from(["A100", "L40S"]),
        "card_s": st.integers(0, 10**9),
        "cost": st.decimals(0, 10**6, places=2).map(str),
    }
)


@settings(max_examples=50)
@given(st.lists(_LINE, max_size=12), st.booleans())
def test_rows_add_up_to_the_lines_in_seconds_and_in_cents(
    lines: list[dict[str, Any]], by_type: bool
) -> None:
    rows = bill_rows.bill_rows(lines, by_type=by_type)

    assert sum(row["card_s"] for row in rows) == sum(line["card_s"] for line in lines)
    assert sum(Decimal(row["cost"]) for row in rows) == sum(Decimal(line["cost"]) for line in lines)
