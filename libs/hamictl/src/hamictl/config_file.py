"""`~/.config/hamictl.toml`: addresses, and default values of options.

Options override the environment, and the environment overrides the file. The addresses are those of
`HAMI_...` variables, without the prefix and in lower case; a running local system overrides all of
them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from hamicommon.clipping import clip
from hamicommon.errors import InvalidRequest

FILE_NAME = "hamictl.toml"
MAX_BYTES = 1024 * 1024
OPTIONS: Mapping[str, tuple[str, ...] | type[bool] | type[str]] = {
    "output": ("table", "wide", "json", "yaml"),
    "color": ("auto", "always", "never"),
    "ascii": bool,
    "utc": bool,
    "namespace": str,
}
"""Keys that are options of commands -> the values that they accept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFile:
    """Contents of the file; empty if it does not exist."""

    path: Path
    exists: bool = False
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Addresses, which are fields of hamictl's settings."""
    options: Mapping[str, str | bool] = field(default_factory=dict)
    """Default values by the names in `OPTIONS`."""


def read_config(path: Path, addresses: Collection[str], *, named: bool) -> ConfigFile:
    """Read the file if it exists; `addresses`: keys that it may have in addition to `OPTIONS`.

    Raises: InvalidRequest if it can't be read, has other keys or values, or is `named` by the user
    and does not exist.
    """
    try:
        with path.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
    except FileNotFoundError:
        if named:
            raise InvalidRequest(f"HAMICTL_CONFIG={path} does not exist") from None
        return ConfigFile(path=path)
    except OSError as exc:
        raise InvalidRequest(f"{path}: not readable: {exc.strerror}") from None
    if len(content) > MAX_BYTES:
        raise InvalidRequest(f"{path}: too large for a configuration")
    try:
        return parse_config(content.decode(), path, addresses)
    except UnicodeDecodeError:
        raise InvalidRequest(f"{path}: not text in UTF-8") from None


def parse_config(text: str, path: Path, addresses: Collection[str]) -> ConfigFile:
    """Parse the file's text. Raises: InvalidRequest with the file and the key."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise InvalidRequest(f"{path}: not TOML: {clip(str(exc))}") from None
    chosen: dict[str, str] = {}
    options: dict[str, str | bool] = {}
    for key, value in found.items():
        if key in OPTIONS:
            options[key] = _option(path, key, value)
        elif key not in addresses:
            raise InvalidRequest(f"{path}: {clip(key)!r} is not a setting{_close(key, addresses)}")
        elif not isinstance(value, str):
            raise InvalidRequest(f"{path}: {key} is {clip(str(value))}: use a text in quotes")
        else:
            chosen[key] = value
    return ConfigFile(path=path, exists=True, addresses=chosen, options=options)


def _option(path: Path, key: str, value: object) -> str | bool:
    wanted = OPTIONS[key]
    if isinstance(wanted, tuple):
        if isinstance(value, str) and value in wanted:
            return value
        kind = " or ".join(f'"{one}"' for one in wanted)
    elif wanted is bool:
        if isinstance(value, bool):
            return value
        kind = "true or false"
    else:
        if isinstance(value, str) and value:
            return value
        kind = "a text in quotes"
    raise InvalidRequest(f"{path}: {key} is {clip(str(value))!r}: use {kind}")


def _close(key: str, addresses: Collection[str]) -> str:
    near = get_close_matches(key, [*OPTIONS, *addresses], n=1)
    return f"; did you mean {near[0]}?" if near else "; `hamictl config` lists all"
