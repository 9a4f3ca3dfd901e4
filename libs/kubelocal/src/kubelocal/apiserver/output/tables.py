"""Lists and objects as a `Table`: the form in which kubectl asks for what it prints."""

from __future__ import annotations

from collections.abc import Iterable

import orjson
from hamicommon.k8s.types import Json

from kubelocal.apiserver.output import forms
from kubelocal.apiserver.output.columns import AGE, COLUMNS, NAME
from kubelocal.apiserver.schema.resource import Resource
from kubelocal.apiserver.storage.objects import Stored
from kubelocal.apiserver.storage.watch_cache import WatchChange


def table(
    resource: Resource, objects: Iterable[Stored], meta: dict[str, str | int], include: str
) -> bytes:
    """`include` is the includeObject parameter: None, Metadata (default) or Object."""
    columns = COLUMNS.get(resource.kind, (NAME, AGE))
    rows = []
    for stored in objects:
        body = stored.load()
        row: Json = {"cells": [column.cell(body) for column in columns]}
        if include != "None":
            row["object"] = _included(resource, body, include)
        rows.append(row)
    return orjson.dumps(
        {
            "kind": "Table",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": meta,
            "columnDefinitions": [column.definition() for column in columns],
            "rows": rows,
        }
    )


def table_line(resource: Resource, change: WatchChange, kind: str, include: str) -> bytes:
    """The watch line of a change, as a table of one row."""
    meta: dict[str, str | int] = {"resourceVersion": str(change.now.version)}
    return forms.watch_line(kind, table(resource, [change.now], meta, include))


def _included(resource: Resource, body: Json, include: str) -> Json:
    if include == "Object":
        head = {"kind": resource.kind, "apiVersion": resource.api_version}
        return head | forms.from_storage(resource, body)
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": body["metadata"],
    }
