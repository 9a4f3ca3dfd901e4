"""`hamictl config`: the settings, and the source of each."""

from __future__ import annotations

import stat
import sys
import textwrap
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from pydantic import SecretStr
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from hamictl.commands.options import Answered
from hamictl.commands.runner import spoken_errors
from hamictl.config_file import OPTIONS, ConfigFile
from hamictl.output import render
from hamictl.output.records import TABLE, Records, Row, TableColumn, plain_column
from hamictl.output.terminal import note
from hamictl.settings import NOT_IN_THE_FILE, Settings, config_file
from hamictl.target import find_target

USUAL: Mapping[str, str | bool] = {
    "output": "table",
    "color": "auto",
    "ascii": False,
    "utc": False,
    "namespace": "default",
}
MEANINGS = {
    "output": "output form: table, wide, json or yaml",
    "color": "auto (on a terminal without NO_COLOR), always or never",
    "ascii": "print ASCII characters only",
    "utc": "times in UTC, not in your zone",
    "namespace": "namespace of a pod that is named without one",
}
HEAD = """\
# Settings of hamictl: an option wins over the environment, and that over this file.
# `hamictl config` shows what is in force. A running local system (`hamictl up`) is asked first.
"""
_OTHERS = stat.S_IRGRP | stat.S_IROTH


class _Variables(BaseSettings):
    """Settings that give the options of every command their defaults."""

    model_config = SettingsConfigDict(env_prefix="HAMICTL_")

    output: str | None = None
    color: str | None = None
    ascii: str | None = None
    utc: str | None = None
    namespace: str | None = None


class _EnvironmentAlone(Settings):
    """Settings from the environment only, without the file."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], *sources: Any, **named: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the environment as the only source."""
        return (named["env_settings"],)


def config(
    example: Annotated[
        bool, typer.Option("--example", help="print a file with every setting, as a start")
    ] = False,
    output: Answered = TABLE,
) -> None:
    """Show the settings in force and where each comes from."""
    if example:
        sys.stdout.write(example_file())
        return
    with spoken_errors():
        file = config_file()
        settings, local = Settings(), find_target().local
    rows = [*_options(file), *_addresses(file, settings)]
    columns = [
        plain_column("SETTING", "setting"),
        TableColumn("VALUE", _value, "value"),
        plain_column("FROM", "source"),
        plain_column("VARIABLE", "variable", wide=True),
    ]
    found = Records(
        kind="Setting",
        plural="settings",
        columns=columns,
        rows=rows,
        name=lambda row: f"setting/{row['setting']}",
    )
    if output.for_people:
        note(_about(file, settings, local=local))
    render.write(found, output)


def _about(file: ConfigFile, settings: Settings, *, local: bool) -> str:
    there = f"file: {file.path}"
    if not file.exists:
        there += " (does not exist; `hamictl config --example` prints one)"
    elif _shows_secrets(file):
        there += "; ▲ has a secret that others may read: chmod 600"
    if local:
        there += f"\na local system runs in {settings.folder}; its addresses are used"
    return there


def _shows_secrets(file: ConfigFile) -> bool:
    secrets = {name for name in file.addresses if _is_secret(name)}
    return bool(secrets) and bool(file.path.stat().st_mode & _OTHERS)


def _is_secret(name: str) -> bool:
    return Settings.model_fields[name].annotation is SecretStr


def _options(file: ConfigFile) -> list[dict[str, Any]]:
    given = _Variables()
    rows = []
    for name in OPTIONS:
        variable = f"HAMICTL_{name.upper()}"
        value, source = USUAL[name], "default"
        if getattr(given, name):
            value, source = getattr(given, name), "environment"
        elif name in file.options:
            value, source = file.options[name], "file"
        rows.append({"setting": name, "value": value, "source": source, "variable": variable})
    return rows


def _addresses(file: ConfigFile, settings: Settings) -> list[dict[str, Any]]:
    by_variable = _EnvironmentAlone().model_fields_set
    return [
        {
            "setting": name,
            "value": _mask_secret(getattr(settings, name)),
            "source": "environment"
            if name in by_variable
            else "file"
            if name in file.addresses
            else "default",
            "variable": str(info.validation_alias or f"HAMI_{name.upper()}"),
        }
        for name, info in Settings.model_fields.items()
        if name not in NOT_IN_THE_FILE
    ]


def _mask_secret(value: object) -> str | None:
    """Return the value without a secret's text; None if it is not set."""
    if isinstance(value, SecretStr):
        return "(set, not shown)" if value.get_secret_value() else None
    return None if value in (None, "") else str(value)


def _value(row: Row) -> str:
    value = row["value"]
    if isinstance(value, bool):
        return str(value).lower()
    return "-" if value is None else str(value)


def example_file() -> str:
    """Return an example file: all settings as comments, with their meaning."""
    lines = [HEAD]
    for name in OPTIONS:
        usual = USUAL[name]
        shown = str(usual).lower() if isinstance(usual, bool) else f'"{usual}"'
        lines.append(f"# {MEANINGS[name]}\n# {name} = {shown}\n")
    for name, info in Settings.model_fields.items():
        if name in NOT_IN_THE_FILE:
            continue
        meaning = textwrap.wrap(info.description or "a kubeconfig file", 96)
        usual = "" if _is_secret(name) else info.default or ""
        lines.append("\n".join(f"# {line}" for line in meaning) + f'\n# {name} = "{usual}"\n')
    return "\n".join(lines)
