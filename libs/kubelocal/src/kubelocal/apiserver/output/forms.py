"""How a stored object looks through one path of the API: with its kind, as a list item, as a watch
line, and events in the shape of `events.k8s.io`.

Stored bytes are spliced, not decoded, except for events asked by their other name.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import orjson
from hamicommon.k8s.types import Json

from kubelocal.apiserver.schema.resource import Resource
from kubelocal.apiserver.storage.objects import Stored
from kubelocal.apiserver.storage.watch_cache import WatchChange

# core/v1 name -> events.k8s.io/v1 name
_EVENT_NAMES = {
    "involvedObject": "regarding",
    "message": "note",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
}
_EVENT_NAMES_BACK = {new: old for old, new in _EVENT_NAMES.items()}


def to_storage(resource: Resource, body: Json) -> Json:
    """A body that came through `resource`, in the shape that is stored."""
    return _renamed(body, _EVENT_NAMES_BACK) if _is_other_event(resource) else body


def from_storage(resource: Resource, body: Json) -> Json:
    """A stored body in the shape of `resource`, without kind and apiVersion."""
    return _renamed(body, _EVENT_NAMES) if _is_other_event(resource) else body


def whole(resource: Resource, stored: Stored) -> bytes:
    """The object with its kind and apiVersion."""
    return _head(resource) + item(resource, stored)[1:]


def item(resource: Resource, stored: Stored) -> bytes:
    """The object as an element of a list: without kind, as the real server sends it."""
    if _is_other_event(resource):
        return orjson.dumps(from_storage(resource, stored.load()))
    return stored.raw


def line(resource: Resource, change: WatchChange, kind: str) -> bytes:
    """The watch line of a change, encoded once for all watchers of this face."""
    key = (resource.api_version, kind)
    encoded = change.lines.get(key)
    if encoded is None:
        # To a watcher whose selection it leaves, the real server shows the state before; the
        # version of the object is that of the change either way.
        encoded = change.lines[key] = watch_line(kind, whole(resource, change.now))
    return encoded


def watch_line(kind: str, whole_object: bytes) -> bytes:
    return b'{"type":"' + kind.encode() + b'","object":' + whole_object + b"}\n"


@cache
def _head(resource: Resource) -> bytes:
    kind = orjson.dumps({"kind": resource.kind, "apiVersion": resource.api_version})
    return kind[:-1] + b","


def _is_other_event(resource: Resource) -> bool:
    return resource.group == "events.k8s.io"


def _renamed(body: Json, names: dict[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in body.items()}
