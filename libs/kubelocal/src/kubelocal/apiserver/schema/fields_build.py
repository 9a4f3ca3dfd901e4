"""Builds `_generated/fields.json` from the models of the Kubernetes client.

Run `python -m kubelocal.apiserver.schema.fields_build` after an upgrade of the client; a test
compares the
committed file with a fresh build. The server itself reads only the file (`schema`), because
importing the models takes a second and 60 MB.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import orjson
from kubernetes.client import models

from kubelocal.apiserver.schema.resources import RESOURCES

FIELDS_FILE = Path(__file__).parents[1] / "_generated" / "fields.json"
EXTRA_ROOTS = ("V1DeleteOptions", "V1Status", "V1Eviction")

# The models have `str` or `object` where the wire has its own types; these are those fields.
_QUANTITIES = {
    ("V1EmptyDirVolumeSource", "sizeLimit"),
    ("V1NodeStatus", "allocatable"),
    ("V1NodeStatus", "capacity"),
    ("V1PersistentVolumeClaimStatus", "capacity"),
    ("V1PersistentVolumeClaimStatus", "allocatedResources"),
    ("V1PersistentVolumeSpec", "capacity"),
    ("V1PodSpec", "overhead"),
    ("V1ContainerStatus", "allocatedResources"),
    ("V1PodStatus", "allocatedResources"),
    ("V1ResourceFieldSelector", "divisor"),
    ("V1ResourceQuotaSpec", "hard"),
    ("V1ResourceQuotaStatus", "hard"),
    ("V1ResourceQuotaStatus", "used"),
    ("V1ResourceRequirements", "limits"),
    ("V1ResourceRequirements", "requests"),
    ("V1VolumeResourceRequirements", "limits"),
    ("V1VolumeResourceRequirements", "requests"),
}
_MICRO_TIMES = {"acquireTime", "renewTime", "eventTime", "lastObservedTime"}
_INT_OR_STRING = {"port", "targetPort", "maxUnavailable", "maxSurge", "minAvailable"}
_PLAIN = {"str": "string", "int": "integer", "bool": "boolean", "float": "number", "bytes": "bytes"}


def build() -> dict[str, Any]:
    """{definition: {"fields": {json name: type}, "required": [json name]}} of all we serve.

    A type is a plain name, a definition's name, or `[]`/`{}` before either (list, map of).
    """
    definitions: dict[str, Any] = {}
    queue = [each.schema for each in RESOURCES] + list(EXTRA_ROOTS)
    while queue:
        name = queue.pop()
        if name in definitions:
            continue
        model = getattr(models, name)
        fields = {
            json_name: _type(name, json_name, model.openapi_types[attribute])
            for attribute, json_name in model.attribute_map.items()
        }
        required = [
            model.attribute_map[attribute]
            for attribute, info in model.model_fields.items()
            if info.is_required()
        ]
        definitions[name] = {"fields": fields, "required": sorted(required)}
        queue += [bare(kind) for kind in fields.values() if bare(kind)[0].isupper()]
    return dict(sorted(definitions.items()))


def bare(kind: str) -> str:
    """The element type of a list or map type."""
    return re.sub(r"^(\[\]|\{\})+", "", kind)


def _type(owner: str, json_name: str, declared: str) -> str:
    if found := re.fullmatch(r"List\[(.+)\]", declared):
        return "[]" + _type(owner, json_name, found[1])
    if found := re.fullmatch(r"Dict\[str, (.+)\]", declared):
        return "{}" + _type(owner, json_name, found[1])
    if (owner, json_name) in _QUANTITIES:
        return "quantity"
    if declared == "datetime":
        return "microtime" if json_name in _MICRO_TIMES else "time"
    if declared == "object":
        return "intorstring" if json_name in _INT_OR_STRING else "any"
    return _PLAIN.get(declared, declared)


def main() -> None:
    FIELDS_FILE.parent.mkdir(exist_ok=True)
    FIELDS_FILE.write_bytes(orjson.dumps(build(), option=orjson.OPT_INDENT_2) + b"\n")


if __name__ == "__main__":
    main()
