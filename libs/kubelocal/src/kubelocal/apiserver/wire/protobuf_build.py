"""Builds `_generated/protobuf_numbers.json` from the `generated.proto` files of Kubernetes.

Run `python -m kubelocal.apiserver.wire.protobuf_build KUBERNETES_SOURCE`. Field numbers never
change, so
the files of any version will do; fields that came later are simply not in the table.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import orjson

from kubelocal.apiserver.schema import fields

NUMBERS_FILE = Path(__file__).parents[1] / "_generated" / "protobuf_numbers.json"
_STAGING = Path("staging/src/k8s.io")
# Where a message of a definition's name is looked for, in this order.
_FILES = {
    "meta": "apimachinery/pkg/apis/meta/v1",
    "core": "api/core/v1",
    "apps": "api/apps/v1",
    "batch": "api/batch/v1",
    "coordination": "api/coordination/v1",
    "scheduling": "api/scheduling/v1",
    "rbac": "api/rbac/v1",
    "admissionregistration": "api/admissionregistration/v1",
    "events": "api/events/v1",
    "policy": "api/policy/v1beta1",
}
_FIELD = re.compile(
    r"^\s*(?:optional|repeated|required|map<\w+, *[\w.]+>)\s*([\w.]+)?\s+(\w+) = (\d+)"
)
# Messages that have been renamed since; the numbers are the same.
_RENAMED = {"LifecycleHandler": "Handler", "VolumeResourceRequirements": "ResourceRequirements"}

Messages = dict[str, dict[int, tuple[str, str]]]


def build(source: Path) -> dict[str, Any]:
    """{definition: {number: JSON name, or {number: JSON name} of an embedded message}}."""
    packages = {
        name: _messages((source / _STAGING / folder / "generated.proto").read_text())
        for name, folder in _FILES.items()
    }
    table: dict[str, Any] = {}
    for definition in fields.definitions():
        package, new_name = _split(definition)
        name = _RENAMED.get(new_name, new_name)
        found = next(
            (
                messages
                for key, messages in packages.items()
                if package in ("", key) and name in messages
            ),
            None,
        )
        if found is not None:
            table[definition] = _numbers(definition, name, found)
    return table


def _numbers(definition: str, message: str, messages: Messages) -> dict[str, Any]:
    known = fields.definitions()[definition]["fields"]
    numbers: dict[str, Any] = {}
    for number, (name, kind) in messages[message].items():
        if name in known:
            numbers[str(number)] = name
        elif kind in messages:  # a Go struct that is embedded: its fields are the parent's in JSON
            numbers[str(number)] = _numbers(definition, kind, messages)
    return numbers


def _messages(text: str) -> Messages:
    messages: Messages = {}
    current: dict[int, tuple[str, str]] = {}
    for line in text.splitlines():
        if found := re.match(r"message (\w+) \{", line):
            current = messages.setdefault(found[1], {})
        elif found := _FIELD.match(line):
            current[int(found[3])] = (found[2], (found[1] or "").rpartition(".")[2])
    return messages


def _split(definition: str) -> tuple[str, str]:
    """`CoreV1Event` -> (`core`, `Event`); `V1Pod` -> (``, `Pod`)."""
    found = re.fullmatch(r"([A-Z][a-z]+)??V\d+(?:alpha\d+|beta\d+)?([A-Z].*)", definition)
    return ((found[1] or "").lower(), found[2]) if found else ("", definition)


def main() -> None:
    table = build(Path(sys.argv[1]))
    NUMBERS_FILE.write_bytes(orjson.dumps(table, option=orjson.OPT_INDENT_2) + b"\n")


if __name__ == "__main__":
    main()
