"""Output of usage, showback, who and pending, at 80 and 200 columns and in ASCII."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import typer
from hamicommon.errors import InvalidRequest
from hamicommon.ledger.showback import PriceList
from hamictl.commands import showback as bill_rows
from hamictl.commands.named import HELD, WAITING
from hamictl.commands.options import moment, moment_of, since, span
from hamictl.commands.query import range_text
from hamictl.commands.showback import bill_by, given_prices, sum_sentence
from hamictl.commands.usage import COLUMNS
from hamictl.output import render
from hamictl.output.records import Records
from hamictl.output.terminal import Presentation, present
from hamictl.questions import QuestionAnswer
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
    answer = QuestionAnswer(
        question=question,
        title="",
        as_of="2026-11-20T14:05:00Z",
        rows=[row],
        unknown=frozenset({"used_memory_bytes", "used_core_ratio"}),
        complete=True,
    )
    return records_of(answer, columns=columns)


WHO_RECORDS = records(
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
VERBS = {"who": WHO_RECORDS, "pending": PENDING, "usage": USAGE, "showback": SHOWBACK}


@pytest.fixture(autouse=True)
def in_utc() -> Any:
    present(Presentation(utc=True))
    yield
    present(Presentation())


def print_records(found: Records, width: int, **how: bool) -> str:
    columns = [column for column in found.columns if not column.wide]
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(render.grid(columns, found.rows, Presentation(utc=True, **how)))
    assert isinstance(console.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


@pytest.mark.parametrize(("verb", "width"), GOLDEN)
def test_a_verb_prints_this(verb: str, width: int) -> None:
    assert print_records(VERBS[verb], width) == GOLDEN[verb, width]


@pytest.mark.parametrize("verb", VERBS)
def test_80_columns_fold_and_200_hold_a_row_in_a_line(verb: str) -> None:
    narrow, wide = print_records(VERBS[verb], 80), print_records(VERBS[verb], 200)

    assert max(map(len, narrow.splitlines())) <= 80
    assert len(wide.splitlines()) == len(VERBS[verb].rows) + 1


@pytest.mark.parametrize("verb", VERBS)
def test_ascii_is_ascii_and_keeps_every_text(verb: str) -> None:
    plain, whole = print_records(VERBS[verb], 200, ascii_only=True), print_records(VERBS[verb], 200)

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


# --- values of a query that JSON and tables have no form for: ranges of moments


FROM = datetime(2026, 11, 26, 14, 27, 9, tzinfo=timezone(timedelta(hours=1)))
UNTIL = datetime(2026, 11, 26, 13, 29, 42, tzinfo=UTC)


@pytest.mark.parametrize(
    ("held", "wanted"),
    [
        (asyncpg.Range(FROM, UNTIL), "[2026-11-26T13:27:09Z,2026-11-26T13:29:42Z)"),
        (asyncpg.Range(FROM, None), "[2026-11-26T13:27:09Z,)"),
        (asyncpg.Range(1, 4), "[1,4)"),
        (asyncpg.Range(empty=True), "empty"),
    ],
)
def test_a_range_is_written_with_moments_in_iso_8601(held: asyncpg.Range, wanted: str) -> None:
    assert range_text(held) == wanted


# --- spellings of a moment, and their meaning


NOW = datetime(2026, 11, 20, 14, 30, 15, 500, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2026-11-20T14:05:00Z", datetime(2026, 11, 20, 14, 5, tzinfo=UTC)),
        ("2026-11-20T15:05+01:00", datetime(2026, 11, 20, 14, 5, tzinfo=UTC)),
        ("2026-11-20 14:05", datetime(2026, 11, 20, 14, 5, tzinfo=UTC)),
        ("14:05", datetime(2026, 11, 20, 14, 5, tzinfo=UTC)),
        ("today 9:05:01", datetime(2026, 11, 20, 9, 5, 1, tzinfo=UTC)),
        ("Yesterday 14:05", datetime(2026, 11, 19, 14, 5, tzinfo=UTC)),
        ("-15m", NOW - timedelta(minutes=15)),
        ("-1h30m", NOW - timedelta(hours=1, minutes=30)),
        (" now ", NOW),
    ],
)
def test_a_moment_is_understood(text: str, wanted: datetime) -> None:
    assert moment(text, now=NOW, utc=True) == wanted


@pytest.mark.parametrize(
    "text",
    [
        *("", "soon", "25:00", "14:60", "-", "-15", "-15x", "15m", "tomorrow 14:05", "--1h"),
        *("2026-13-01", "2026-02-30T10:00Z", "0001-01-01T00:00+14:00", "9999999999d", "\x00"),
        *("-999999999w", "14:05 yesterday", "9999-12-31T23:59-14:00"),
    ],
)
def test_what_is_no_moment_is_refused_with_the_forms_that_are(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"not a|out of range|too long"):
        moment(text, now=NOW, utc=True)


@given(st.text(max_size=30))
def test_any_text_is_a_moment_or_a_sentence(text: str) -> None:
    for utc in (True, False):
        with suppress(InvalidRequest):
            assert moment(text, now=NOW, utc=utc).tzinfo is UTC


@given(st.datetimes(timezones=st.just(UTC)))
def test_an_rfc_3339_text_is_read_as_it_was_written(at: datetime) -> None:
    assert moment(at.isoformat(), now=NOW) == at


def test_since_takes_a_length_of_time_alone() -> None:
    assert since("2h", now=NOW) == NOW - timedelta(hours=2)
    assert since("14:05", now=NOW, utc=True) == moment("14:05", now=NOW, utc=True)


def test_parts_of_a_length_of_time_add_up() -> None:
    assert span("1w2d3h4m5s") == timedelta(weeks=1, days=2, hours=3, minutes=4, seconds=5)
    with pytest.raises(InvalidRequest, match="not a length of time"):
        span("5")


@pytest.mark.parametrize("option", ["--at", "--until"])
def test_an_option_takes_a_length_of_time_as_so_long_ago(option: str) -> None:
    before = datetime.now(UTC)
    found = moment_of("2m", option)
    after = datetime.now(UTC)

    assert found is not None
    assert before <= found + timedelta(minutes=2) <= after


# --- a bill by the reader's own prices: whole cents that add up, and unknown where there is none


LINES: list[dict[str, Any]] = [
    {"type": "A100", "kind": "held", "namespace": "nlp", "card_s": 1800, "cost": None},
    {"type": "L40S", "kind": "idle", "namespace": None, "card_s": 3600, "cost": None},
]
SMALL_BILL: dict[str, Any] = {
    "since": "2026-11-20T00:00:00Z",
    "until": "2026-11-20T02:00:00Z",
    "basis": "memory",
    "prices": None,
    "currency": None,
    "card_s": 5400,
    "lines": LINES,
}


def test_one_price_is_that_of_every_type_in_eur_where_the_service_has_no_currency() -> None:
    price = given_prices("2.50", "")
    assert isinstance(price, Decimal)

    made = bill_by(SMALL_BILL, price)

    assert [line.cost for line in made.lines] == [Decimal("1.25"), Decimal("2.50")]
    assert made.prices is not None
    assert made.prices.currency == "EUR"
    in_dollars = bill_by({**SMALL_BILL, "currency": "USD"}, price).prices
    assert in_dollars is not None
    assert in_dollars.currency == "USD"


def test_a_price_list_leaves_the_cost_of_other_types_unknown(tmp_path: Path) -> None:
    file = tmp_path / "prices.json"
    file.write_text(json.dumps({"version": "v", "currency": "EUR", "card_hour": {"A100": "2"}}))
    prices = given_prices("", str(file))
    assert isinstance(prices, PriceList)

    assert [line.cost for line in bill_by(SMALL_BILL, prices).lines] == [Decimal("1.00"), None]


@pytest.mark.parametrize("text", ["x", "-1", "NaN", "Infinity", "1e99"])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a price"):
        given_prices(text, "")


def test_a_file_that_is_no_price_list_is_refused_with_the_form(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="card_hour"):
        given_prices("", str(tmp_path / "none.json"))


def test_the_sentence_names_the_types_without_a_price_and_the_setting() -> None:
    assert sum_sentence({**SMALL_BILL, "prices": "v1"}, None).startswith(
        "no price (HAMI_METRICS_PRICE_LIST of hami-metrics) for A100, L40S: or take --price"
    )
