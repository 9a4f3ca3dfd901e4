r"""Render kubectl's JSONPath templates such as `{.items[*].node}`. Pure.

Understood: fields, `['field']`, `[3]`, `[-1]`, `[*]`, `..` is not; text in quotes, `range` and
`end`. A field that an object has not is left out, as in kubectl.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from hamicommon.errors import InvalidRequest

_PIECE = re.compile(r"\{((?:[^{}\"']|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*')*)\}|([^{}]+)")
_STEP = re.compile(r"\.([\w-]+)|\[(-?\d+)\]|\[(\*)\]|\['([^']*)'\]|\[\"([^\"]*)\"\]|\.(\*)")


def render(template: str, value: object) -> str:
    """Return the template's text for `value`, which consists of JSON's types.

    Raises: InvalidRequest when the template is none.
    """
    return "".join(_render(_pieces(template), value))


def _pieces(template: str) -> list[tuple[bool, str]]:
    """Yield each part of the template as (is in braces, text)."""
    pieces, at = [], 0
    while at < len(template):
        match = _PIECE.match(template, at)
        if match is None:
            raise InvalidRequest(f"-o jsonpath={template}: not understood from {template[at:]!r}")
        braced, plain = match.groups()
        pieces.append((braced is not None, (braced if braced is not None else plain).strip("\r")))
        at = match.end()
    return pieces


def _render(pieces: Sequence[tuple[bool, str]], value: object) -> Iterator[str]:
    at = 0
    while at < len(pieces):
        braced, text = pieces[at]
        command = text.strip()
        if not braced:
            yield text
        elif command.startswith("range "):
            end = _end_of_range(pieces, at)
            for each in _find(command.removeprefix("range ").strip(), value):
                yield from _render(pieces[at + 1 : end], each)
            at = end
        elif command[:1] in ('"', "'"):
            yield _literal(command)
        elif command == "end":
            raise InvalidRequest("-o jsonpath: {end} without {range}")
        else:
            yield " ".join(_as_text(each) for each in _find(command, value))
        at += 1


def _end_of_range(pieces: Sequence[tuple[bool, str]], start: int) -> int:
    depth = 0
    for at in range(start, len(pieces)):
        braced, text = pieces[at]
        if braced and text.strip().startswith("range "):
            depth += 1
        elif braced and text.strip() == "end":
            depth -= 1
            if depth == 0:
                return at
    raise InvalidRequest("-o jsonpath: {range ...} without {end}")


def _literal(quoted: str) -> str:
    body = quoted[1:-1].replace('"', '\\"') if quoted.startswith("'") else quoted[1:-1]
    try:
        return str(json.loads(f'"{body}"'))
    except ValueError:
        raise InvalidRequest(f"-o jsonpath: {quoted} is not text in quotes") from None


def _find(path: str, value: object) -> list[Any]:
    rest = path.removeprefix("$").removeprefix("@")
    if rest == ".":
        return [value]
    found: list[Any] = [value]
    at = 0
    if rest and rest[0] not in ".[":
        rest = f".{rest}"
    while at < len(rest):
        step = _STEP.match(rest, at)
        if step is None:
            raise InvalidRequest(f"-o jsonpath: {path!r} is not understood from {rest[at:]!r}")
        found = [each for one in found for each in _step(step, one)]
        at = step.end()
    return found


def _step(step: re.Match[str], value: object) -> list[Any]:
    field, index, _, single, double, _ = step.groups()
    name = next((text for text in (field, single, double) if text is not None), None)
    if name is not None:
        return [value[name]] if isinstance(value, dict) and name in value else []
    if index is not None:
        within = isinstance(value, list) and -len(value) <= int(index) < len(value)
        return [value[int(index)]] if within and isinstance(value, list) else []
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list) else []


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
