"""The values of `-o`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

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
    """Of `-o TEXT`; Typer hands defaults in, too. Raises: typer.BadParameter."""
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
