"""Rows that a verb answers with, and the forms of `-o`. Pure.

Base units go out: what a service names `..._mib` leaves as bytes, `..._percent` as a ratio of 0 to
1, `..._ms` as seconds. What is unknown is null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import typer

JSONPATH = "jsonpath="


class Form(StrEnum):
    """How rows are written."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"
    NAME = "name"
    JSONPATH = "jsonpath"


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """A form; `template` for JSONPath."""

    form: Form
    template: str = ""

    @property
    def for_people(self) -> bool:
        """Whether a person reads it, not a program."""
        return self.form in (Form.TABLE, Form.WIDE)

    def __str__(self) -> str:
        return f"{JSONPATH}{self.template}" if self.form is Form.JSONPATH else self.form.value


TABLE = OutputFormat(Form.TABLE)
WANTED = "table, wide, json, yaml, csv, name or jsonpath=TEMPLATE is wanted"


def output_format(given: object) -> OutputFormat:
    """Return the format of `-o TEXT`; Typer hands defaults in, too. Raises: typer.BadParameter."""
    text = str(given)
    if text.startswith(JSONPATH):
        return OutputFormat(Form.JSONPATH, text.removeprefix(JSONPATH))
    try:
        form = Form(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r}: {WANTED}") from None
    if form is Form.JSONPATH:
        raise typer.BadParameter(f"-o {JSONPATH}'{{.items[*].name}}' is wanted")
    return OutputFormat(form)


API_VERSION = "hamictl.hami.io/v1"
MIB = 1024 * 1024

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column for people."""

    header: str
    show: Callable[[Row], str]
    key: str = ""
    """Key of the row to sort by; empty: the text that is shown."""
    wide: bool = False
    """Only with `-o wide`, or where `--columns` names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Records to write."""

    kind: str
    """Singular, such as `Device`."""
    plural: str
    """Plural, as in `No devices found`."""
    columns: Sequence[TableColumn]
    rows: Sequence[Row]
    name: Callable[[Row], str]
    """`pod/NAMESPACE/NAME`, for `-o name`."""
    as_of: str | None = None
    """RFC 3339, the moment that the rows are true of; None: unknown."""
    began_at: str | None = None
    """RFC 3339, where there are no rows because the record began later."""


def document(records: Records) -> dict[str, Any]:
    """The JSON document of these rows (schema: docs/hamictl.md, JSON)."""
    return {
        "apiVersion": API_VERSION,
        "kind": f"{records.kind}List",
        "asOf": records.as_of,
        "items": [base_units(row) for row in records.rows],
    }


def base_units(value: Any) -> Any:
    """The same with base units, in depth."""
    if isinstance(value, Mapping):
        return dict(_field(str(key), held) for key, held in value.items())
    if isinstance(value, list | tuple):
        return [base_units(each) for each in value]
    return value


def _field(key: str, value: Any) -> tuple[str, Any]:
    for suffix, name, factor in (("_mib", "_bytes", MIB), ("_percent", "_ratio", 0.01)):
        if key.endswith(suffix) and isinstance(value, int | float | None):
            return key.removesuffix(suffix) + name, None if value is None else _times(value, factor)
    if key.endswith("_ms") and isinstance(value, int | float | None):
        return key.removesuffix("_ms") + "_seconds", None if value is None else round(
            value / 1000, 9
        )
    return key, base_units(value)


def _times(value: float, factor: float) -> float:
    """Percent become ratios without binary dust: 30 is 0.3."""
    return value * factor if factor == MIB else round(value * factor, 6)
