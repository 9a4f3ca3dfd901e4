"""Print records: data on standard output, messages on standard error."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
import typer
import yaml
from rich.table import Table
from rich.text import Text

from hamictl.exit_codes import wrong_usage
from hamictl.output import jsonpath
from hamictl.output.records import (
    Form,
    OutputFormat,
    Records,
    Row,
    TableColumn,
    base_units,
    document,
)
from hamictl.output.terminal import (
    Presentation,
    console,
    emit,
    note,
    note_renamed,
    plain,
    presentation,
    printable,
    shown_time,
)

_RENAMED = {
    "LASTED": "DURATION",
    "STATE": "STATUS",
    "PHASE": "STATUS",
    "READY": "STATUS",
    "HEALTH": "STATUS",
    "SINCE": "AGE",
    "POD": "NAME",
    "NODE": "NAME",
    "WHAT": "DETAIL",
}
"""Former header of a column -> its present header."""


def write(records: Records, output: OutputFormat) -> None:
    """Print the records in the requested format."""
    chosen = presentation()
    records = _sort(records, chosen.sort_by)
    if not output.for_people:
        emit(for_programs(records, output, chosen))
        return
    if not records.rows:
        note(_nothing(records))
        return
    columns = _columns(records, chosen.columns, wide=output.form is Form.WIDE)
    console.print_whole(grid(columns, records.rows, chosen))


def _nothing(records: Records) -> str:
    if records.began_at is None:
        return f"No {records.plural} found."
    began = shown_time(records.began_at)
    return f"No {records.plural} found: the record begins at {began}, earlier times are unknown."


def write_document(value: Any, output: OutputFormat) -> None:
    """Print one object as JSON, YAML or JSONPath.

    Raises: typer.BadParameter if `-o` requires rows.
    """
    emit(_as_text(value, output))


def for_programs(records: Records, output: OutputFormat, chosen: Presentation) -> str:
    """Return the text of a format for programs."""
    if output.form is Form.NAME:
        return "".join(f"{printable(records.name(row))}\n" for row in records.rows)
    if output.form is Form.CSV:
        return _csv(records, chosen)
    return _as_text(document(records), output)


def _as_text(value: Any, output: OutputFormat) -> str:
    if output.form is Form.JSON:
        return escaped_json(value)
    plain = json.loads(orjson.dumps(value, default=str))
    if output.form is Form.YAML:
        text = str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
        if printable(text) == text:
            return text
        return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=False))
    if output.form is Form.JSONPATH:
        with wrong_usage():
            return jsonpath.render(output.template, plain)
    raise typer.BadParameter(f"-o {output}: use table, json, yaml or jsonpath= with this verb")


def escaped_json(value: Any) -> str:
    """Return indented JSON; control characters are escaped."""
    text = orjson.dumps(
        value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE, default=str
    ).decode()
    if printable(text) == text:
        return text
    return "".join(
        char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text
    )


def grid(columns: Sequence[TableColumn], rows: Sequence[Row], chosen: Presentation) -> Table:
    """Return a table without lines, like kubectl's; the sorted column is in reverse video."""
    made = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=chosen.headers, expand=False
    )
    for column in columns:
        style = "reverse" if _is(column, chosen.sort_by) else "bold"
        made.add_column(Text(column.header, style=style), overflow="fold")
    for row in rows:
        made.add_row(*(Text(plain(column.show(row), chosen)) for column in columns))
    return made


def _columns(records: Records, asked: Sequence[str], *, wide: bool) -> list[TableColumn]:
    if not asked:
        return [column for column in records.columns if wide or not column.wide]
    return [_need_column(records, name, "--columns") for name in asked]


def _sort(records: Records, name: str) -> Records:
    if not name:
        return records
    column = _need_column(records, name, "--sort-by")

    def rank(row: Row) -> tuple[bool, float, str]:
        value = row.get(column.key) if column.key else column.show(row)
        if isinstance(value, int | float):
            return False, float(value), ""
        return value is None, 0.0, str(value)

    return replace(records, rows=sorted(records.rows, key=rank))


def _need_column(records: Records, name: str, option: str) -> TableColumn:
    if (column := _column_named(records, name)) is not None:
        return column
    known = ", ".join(column.header for column in records.columns)
    raise typer.BadParameter(f"no column {name!r}; use {known}", param_hint=option)


def _column_named(records: Records, name: str) -> TableColumn | None:
    """Return the column with this header or key, or with this former header."""
    new_name = _RENAMED.get(name.upper(), "")
    for tried in (name, new_name):
        for column in records.columns:
            if _is(column, tried):
                # In upper case it is the header; in lower case it may be a field's name.
                if column.header == new_name and (tried == new_name or name.isupper()):
                    note_renamed(f"column {name}", new_name)
                return column
    return None


def _is(column: TableColumn, name: str) -> bool:
    return bool(name) and name.lower() in (column.header.lower(), column.key.lower())


def _csv(records: Records, chosen: Presentation) -> str:
    """Return all fields of the rows as CSV; `--columns` selects by field or header."""
    rows = [base_units(row) for row in records.rows]
    keys = records.fields or [column.key or column.header.lower() for column in records.columns]
    fields = list(
        dict.fromkeys(key for row in rows or [base_units(dict.fromkeys(keys))] for key in row)
    )
    if chosen.columns:
        fields = [_field(name, fields, records) for name in chosen.columns]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if chosen.headers:
        writer.writerow(fields)
    writer.writerows([_csv_cell(row.get(field)) for field in fields] for row in rows)
    return text.getvalue()


def _field(name: str, fields: Sequence[str], records: Records) -> str:
    if not fields or name in fields:
        return name
    column = _column_named(records, name)
    if column is not None and column.key in fields:
        return column.key
    raise typer.BadParameter(f"no column {name!r}; use {', '.join(fields)}", param_hint="--columns")


def _csv_cell(value: Any) -> Any:
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    # A spreadsheet would run a cell that begins like a formula, and any user can name pods.
    if isinstance(value, str) and value[:1] in "=+-@\t\r" and value:
        return f"'{value}"
    return value
