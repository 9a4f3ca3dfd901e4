"""Rows that a command prints, and the formats of `-o`. Pure.

The output has base units: fields that a service names `..._mib` are printed as bytes, `..._percent`
as a ratio of 0 to 1, `..._ms` as seconds. Unknown values are null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import typer

from hamictl.output.terminal import shown_time

JSONPATH = "jsonpath="


class Form(StrEnum):
    """Output format of rows."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
    NAME = "name"
    JSONPATH = "jsonpath"


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """Output format, with `template` for JSONPath."""

    form: Form
    template: str = ""

    @property
    def for_people(self) -> bool:
        """Whether the format is a table for people."""
        return self.form in (Form.TABLE, Form.WIDE)

    def __str__(self) -> str:
        return f"{JSONPATH}{self.template}" if self.form is Form.JSONPATH else self.form.value


TABLE = OutputFormat(Form.TABLE)
WANTED = "use table, wide, json, yaml, csv, name or jsonpath=TEMPLATE"


def output_format(given: object) -> OutputFormat:
    """Parse `-o TEXT`; Typer passes defaults, too. Raises: typer.BadParameter."""
    text = str(given)
    if text.startswith(JSONPATH):
        return OutputFormat(Form.JSONPATH, text.removeprefix(JSONPATH))
    try:
        form = Form(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r}: {WANTED}") from None
    if form is Form.JSONPATH:
        raise typer.BadParameter(f"use a template, such as -o {JSONPATH}'{{.items[*].name}}'")
    return OutputFormat(form)


API_VERSION = "hamictl.hami.io/v1"
MIB = 1024 * 1024

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TableColumn:
    """Column of a table for people."""

    header: str
    show: Callable[[Row], str]
    key: str = ""
    """Key of the row to sort by; empty: the displayed text."""
    wide: bool = False
    """Whether the column is shown only with `-o wide`, or if `--columns` names it."""


UNKNOWN = "?"


def text_of(value: object) -> str:
    """Return the value as text; unknown is `?`, never 0."""
    return UNKNOWN if value is None else str(value)


def plain_column(
    header: str, key: str, *, wide: bool = False, absent: str = UNKNOWN
) -> TableColumn:
    """Return a column that shows a field unchanged, and `absent` for null."""
    return TableColumn(
        header, lambda row: absent if row.get(key) is None else str(row[key]), key, wide
    )


def time_column(header: str, key: str) -> TableColumn:
    """Return a column that shows a time."""
    return TableColumn(header, lambda row: shown_time(row[key]), key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Rows to print, with columns and names."""

    kind: str
    """Singular of the kind, such as `Device`."""
    plural: str
    """Plural of the kind, as in `No devices found`."""
    columns: Sequence[TableColumn]
    rows: Sequence[Row]
    name: Callable[[Row], str]
    """Function that returns `pod/NAMESPACE/NAME`, for `-o name`."""
    as_of: str | None = None
    """Time to which the rows belong (RFC 3339); None: unknown."""
    began_at: str | None = None
    """Beginning of the record (RFC 3339), if there are no rows because it began later."""
    fields: Sequence[str] = ()
    """Keys of a row, for CSV without rows; empty: the columns' keys."""


_BASE_UNITS: Mapping[str, tuple[str, float, int]] = {
    "_mib": ("_bytes", MIB, 0),
    "_percent": ("_ratio", 0.01, 6),
    "_ms": ("_seconds", 0.001, 9),
}
"""Suffix of a key -> suffix in base units, factor, and number of digits kept (0: all)."""


def document(records: Records) -> dict[str, Any]:
    """Return the rows as a JSON document (schema: docs/hamictl.md, JSON)."""
    return {
        "apiVersion": API_VERSION,
        "kind": f"{records.kind}List",
        "asOf": records.as_of,
        "items": [base_units(row) for row in records.rows],
    }


def base_units(value: Any) -> Any:
    """Convert the value to base units, recursively."""
    if isinstance(value, Mapping):
        return dict(_field(str(key), held) for key, held in value.items())
    if isinstance(value, list | tuple):
        return [base_units(each) for each in value]
    return value


def _field(key: str, value: Any) -> tuple[str, Any]:
    for suffix, (name, factor, digits) in _BASE_UNITS.items():
        if key.endswith(suffix) and isinstance(value, int | float | None):
            if value is not None:
                # Rounded: 30 percent is 0.3, without binary dust.
                value = round(value * factor, digits) if digits else value * factor
            return key.removesuffix(suffix) + name, value
    return key, base_units(value)
