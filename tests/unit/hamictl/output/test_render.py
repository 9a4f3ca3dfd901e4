"""Rows in every form: for people in columns, for programs in base units."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
import typer
import yaml
from hamictl.output import render
from hamictl.output.records import (
    OutputFormat,
    Records,
    Row,
    TableColumn,
    base_units,
    output_format,
)
from hamictl.output.terminal import Colour, Presentation, console, in_ascii, present, shown_time
from hypothesis import given
from hypothesis import strategies as st

ROWS: list[Row] = [
    {"name": "b", "memory_mib": 2, "core_percent": 30, "wait_ms": 1500, "at": None, "on": ["x"]},
    {"name": "a\x1b[31m", "memory_mib": None, "core_percent": 7, "wait_ms": 0, "at": "t", "on": []},
]


def records(rows: list[Row]) -> Records:
    return Records(
        kind="Thing",
        plural="things",
        rows=rows,
        as_of="2026-11-20T14:05:00+00:00",
        name=lambda row: f"thing/{row['name']}",
        columns=(
            TableColumn("NAME", lambda row: str(row["name"]), "name"),
            TableColumn("MEMORY", lambda row: f"▲ {row['memory_mib'] or '?'} MiB", "memory_mib"),
            TableColumn("WAIT", lambda row: f"{row['wait_ms']} ms", "wait_ms", True),
        ),
    )


def test_a_csv_without_rows_has_the_same_header_as_one_with_rows() -> None:
    def header(fields: Sequence[str], *rows: Row) -> str:
        found = replace(records(list(rows)), fields=fields)
        text = render.for_programs(found, output_format("csv"), Presentation())
        return text.splitlines()[0]

    assert header(tuple(ROWS[0])) == header((), *ROWS)
    assert header(()) == "name,memory_bytes,wait_seconds"


def write_records(
    capsys: pytest.CaptureFixture[str], form: str, **chosen: object
) -> tuple[str, str]:
    present(Presentation(**chosen))  # type: ignore[arg-type]  # each case names its own options
    console.set_up()
    try:
        render.write(records(ROWS), output_format(form))
    finally:
        present(Presentation())
    return capsys.readouterr()


def test_a_table_is_plain_and_nothing_in_it_reaches_the_terminal_as_a_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, err = write_records(capsys, "table")

    assert [line.rstrip() for line in out.splitlines()] == [
        "NAME       MEMORY",
        "b          ▲ 2 MiB",
        "a\\x1b[31m  ▲ ? MiB",
    ]
    assert "\x1b" not in out
    assert err == ""


@pytest.mark.parametrize(
    ("form", "chosen", "wanted"),
    [
        ("wide", {"headers": False, "columns": ("wait", "name")}, ["1500 ms  b", "0 ms"]),
        ("wide", {"sort_by": "WAIT"}, ["NAME", "a\\x1b[31m"]),
        ("table", {"sort_by": "memory_mib"}, ["NAME", "b"]),
        ("table", {"sort_by": "NAME"}, ["NAME", "a\\x1b[31m"]),
        ("table", {"ascii_only": True, "headers": False}, ["b          ! 2 MiB", "a\\x1b[31m  !"]),
        ("name", {}, ["thing/b", "thing/a\\x1b[31m"]),
    ],
)
def test_what_a_person_chose_is_gone_by(
    capsys: pytest.CaptureFixture[str], form: str, chosen: dict[str, object], wanted: list[str]
) -> None:
    out, _ = write_records(capsys, form, **chosen)

    for line, start in zip(out.splitlines(), wanted, strict=False):
        assert line.startswith(start), out


def test_json_and_yaml_hold_the_same_in_base_units_with_null_for_unknown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, _ = write_records(capsys, "json")
    document = json.loads(out)

    assert document == yaml.safe_load(write_records(capsys, "yaml")[0])
    assert {key: document[key] for key in ("apiVersion", "kind", "asOf")} == {
        "apiVersion": "hamictl.hami.io/v1",
        "kind": "ThingList",
        "asOf": "2026-11-20T14:05:00+00:00",
    }
    assert document["items"][0] == {
        "name": "b",
        "memory_bytes": 2 * 1024 * 1024,
        "core_ratio": 0.3,
        "wait_seconds": 1.5,
        "at": None,
        "on": ["x"],
    }
    assert document["items"][1]["memory_bytes"] is None


def test_csv_has_all_fields_and_no_formula(capsys: pytest.CaptureFixture[str]) -> None:
    header, *rows = csv.reader(io.StringIO(write_records(capsys, "csv")[0]))

    assert header == ["name", "memory_bytes", "core_ratio", "wait_seconds", "at", "on"]
    assert rows[0] == ["b", "2097152", "0.3", "1.5", "", '["x"]']
    chosen = write_records(capsys, "csv", columns=("NAME", "core_ratio"), headers=False)[0]
    assert chosen.splitlines()[0] == "b,0.3"
    assert render._csv_cell("=HYPERLINK(1)") == "'=HYPERLINK(1)"


def test_jsonpath_reads_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert write_records(capsys, "jsonpath={.items[*].memory_bytes}")[0] == "2097152 null"


def test_an_empty_list_is_noted_on_standard_error_alone(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet, wanted in ((False, "No things found.\n"), (True, "")):
        present(Presentation(quiet=quiet))
        render.write(records([]), output_format("table"))
        assert capsys.readouterr() == ("", wanted)
    present(Presentation())
    render.write(records([]), output_format("json"))
    assert json.loads(capsys.readouterr().out)["items"] == []


def test_colours_come_only_when_they_are_asked_for_in_a_pipe(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "\x1b[" in write_records(capsys, "table", colour=Colour.ALWAYS)[0]
    assert "\x1b" not in write_records(capsys, "table", colour=Colour.NEVER)[0]


@pytest.mark.parametrize("option", ["columns", "sort_by"])
def test_an_unknown_column_is_refused_with_those_that_there_are(
    capsys: pytest.CaptureFixture[str], option: str
) -> None:
    value = ("NOPE",) if option == "columns" else "NOPE"
    with pytest.raises(typer.BadParameter, match="no column 'NOPE'; use NAME, MEMORY, WAIT"):
        write_records(capsys, "table", **{option: value})


@pytest.mark.parametrize("text", ["", "jsonpath", "Table", "xml", "jsonpath {.x}"])
def test_an_unknown_form_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        output_format(text)


def test_a_form_is_read_as_it_is_printed() -> None:
    for text in ("table", "wide", "json", "yaml", "csv", "name", "jsonpath={.a}"):
        assert str(output_format(text)) == text
        assert output_format(output_format(text)) == output_format(text)
    assert isinstance(output_format("json"), OutputFormat)


def test_times_are_in_utc_where_that_is_asked_for() -> None:
    present(Presentation(utc=True))
    try:
        assert shown_time("2026-11-20T14:05:01+02:00") == "2026-11-20 12:05:01"
        assert (shown_time(None), shown_time("odd")) == ("?", "odd")
    finally:
        present(Presentation())


@given(st.text())
def test_text_in_ascii_is_ascii(text: str) -> None:
    assert in_ascii(text).isascii()


@given(st.recursive(st.none() | st.integers() | st.text(), lambda s: st.lists(s), max_leaves=5))
def test_what_has_no_unit_stays_as_it_is(value: object) -> None:
    assert base_units({"x": value}) == {"x": value}
