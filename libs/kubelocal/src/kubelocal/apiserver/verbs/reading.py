"""Get, list in pages, and watch objects.

A page token holds the version of the first page: if the past since then is forgotten the token has
expired, otherwise a watch from that version brings a paging client up to date.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import random
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

import orjson

from kubelocal.apiserver import output
from kubelocal.apiserver.calls import ApiTarget
from kubelocal.apiserver.errors import ApiError, bad_request
from kubelocal.apiserver.schema.resources import Resource
from kubelocal.apiserver.storage import selectors
from kubelocal.apiserver.storage.objects import StoredObject
from kubelocal.apiserver.storage.store import ObjectStore, WatchChange, WatchSelection


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Objects of one answer, and the start of the next page."""

    version: int
    objects: list[StoredObject]
    token: str = ""
    remaining: int = 0

    def metadata(self) -> dict[str, str | int]:
        """Return the `metadata` of the list."""
        meta: dict[str, str | int] = {"resourceVersion": str(self.version)}
        if self.token:
            meta |= {"continue": self.token, "remainingItemCount": self.remaining}
        return meta


def selection(target: ApiTarget, query: Mapping[str, str]) -> WatchSelection:
    """Return the selection by a query's selectors. Raises: ApiError (400)."""
    fields = selectors.parse_fields(query.get("fieldSelector", ""), target.resource.field_labels())
    if target.name:
        only = target.name
        fields = selectors.all_of([fields, lambda have: have["metadata.name"] == only])
    return WatchSelection(
        namespace=target.namespace,
        labels=selectors.parse_labels(query.get("labelSelector", "")),
        fields=fields,
    )


def asked_version(query: Mapping[str, str]) -> int | None:
    """Return the parameter resourceVersion; None if absent or empty. Raises: ApiError."""
    text = query.get("resourceVersion", "")
    if not text:
        return None
    if not text.isdigit():
        raise ApiError(
            500,
            "",
            f'resourceVersion: Invalid value: "{text}": strconv.ParseUint: parsing "{text}": '
            "invalid syntax",
        )
    return int(text)


def get(store: ObjectStore, target: ApiTarget) -> StoredObject:
    """Return the object. Raises: ApiError (404)."""
    stored = store.get(target.collection, target.namespace, target.name)
    if stored is None:
        raise target.not_found()
    return stored


def list_page(store: ObjectStore, target: ApiTarget, query: Mapping[str, str]) -> Page:
    """Return the requested page of a list. Raises: ApiError."""
    wanted = selection(target, query)
    version = asked_version(query)
    if version is not None and version > store.version:
        raise ApiError(
            504,
            "Timeout",
            f"Timeout: Too large resource version: {version}, current: {store.version}",
            {
                "causes": [
                    {
                        "reason": "ResourceVersionTooLarge",
                        "message": "Too large resource version",
                    }
                ],
                "retryAfterSeconds": 1,
            },
        )
    limit = _limit(query)
    objects = [stored for stored in store.items(target.collection) if wanted.takes(stored)]
    first = store.version
    if token := query.get("continue", ""):
        first, after = _read_token(token)
        store.histories[target.collection].after(first)  # raises where it is forgotten
        objects = [stored for stored in objects if stored.key[1:] > after]
    # From the cache (version 0) the real server answers whole lists, whatever the limit.
    if not limit or len(objects) <= limit or (version == 0 and not token):
        return Page(version=first, objects=objects)
    page = objects[:limit]
    return Page(
        version=first,
        objects=page,
        token=_token(first, page[-1]),
        remaining=len(objects) - limit,
    )


def encode_list(target: ApiTarget, page: Page) -> bytes:
    """Return the JSON of a list, joined from the stored bytes."""
    resource = target.resource
    head = orjson.dumps(
        {
            "kind": f"{resource.kind}List",
            "apiVersion": resource.api_version,
            "metadata": page.metadata(),
        }
    )
    items = b",".join([stored.raw for stored in page.objects])
    return head[:-1] + b',"items":[' + items + b"]}"


def _limit(query: Mapping[str, str]) -> int:
    text = query.get("limit", "") or "0"
    if not text.lstrip("-").isdigit():
        raise bad_request(f"limit: {text!r} is not a whole number")
    return max(int(text), 0)


def _token(version: int, last: StoredObject) -> str:
    return base64.urlsafe_b64encode(orjson.dumps([version, *last.key[1:]])).decode()


def _read_token(token: str) -> tuple[int, tuple[str, str]]:
    try:
        version, namespace, name = orjson.loads(base64.urlsafe_b64decode(token))
        return int(version), (str(namespace), str(name))
    except (binascii.Error, ValueError, TypeError) as error:
        raise bad_request(f"continue key is not valid: {token}") from error


# The real server draws the length of a watch without time-out from [30 min, 60 min).
_MIN_WATCH_S = 1800
_BOOKMARK_INTERVAL_S = 60.0
# The last bookmark comes this long before the end, so that a client resumes without a new list.
_BOOKMARK_BEFORE_END_S = 2.0

Encode = Callable[[Resource, WatchChange, str], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Watch request; `version` None: all existing objects come first."""

    target: ApiTarget
    wanted: WatchSelection
    version: int | None
    timeout_s: float
    bookmarks: bool
    initial_events: bool


def read_watch(target: ApiTarget, query: Mapping[str, str]) -> Watch:
    """Return the watch that a query asks for. Raises: ApiError."""
    text = query.get("timeoutSeconds", "") or "0"
    if not text.isdigit():
        raise bad_request(f"timeoutSeconds: {text!r} is not a whole number")
    version = asked_version(query)
    initial_events = _is_true(query.get("sendInitialEvents", ""))
    return Watch(
        target=target,
        wanted=selection(target, query),
        version=None if initial_events else version or None,
        timeout_s=float(text) or _MIN_WATCH_S * (1 + random.random()),
        bookmarks=_is_true(query.get("allowWatchBookmarks", "")),
        initial_events=initial_events,
    )


def is_watch(query: Mapping[str, str]) -> bool:
    """Return whether the call is a watch."""
    return _is_true(query.get("watch", ""))


async def lines(
    store: ObjectStore, watch: Watch, stopping: asyncio.Event, encode: Encode = output.line
) -> AsyncIterator[bytes]:
    """Yield chunks of whole lines until the time-out, an ERROR line, or the server's stop."""
    resource = watch.target.resource
    history = store.histories[watch.target.collection]
    clock = asyncio.get_running_loop().time
    end_s = clock() + watch.timeout_s
    cursor = watch.version
    if cursor is None:
        cursor = store.version
        if first := _first_lines(store, watch, encode):
            yield first
    bookmark_s = _next_bookmark(clock(), end_s, at_end=False)
    while not stopping.is_set():
        try:
            changes = history.after(cursor)
        except ApiError as error:
            yield output.watch_line("ERROR", orjson.dumps(error.status()))
            return
        if changes:
            cursor = changes[-1].now.version
            chunk = [
                encode(resource, change, kind)
                for change in changes
                if (kind := watch.wanted.kind_of(change))
            ]
            if chunk:
                yield b"".join(chunk)
            continue
        now_s = clock()
        if now_s >= end_s:
            return
        if watch.bookmarks and now_s >= bookmark_s:
            cursor = max(cursor, store.version)
            yield _bookmark(resource, cursor)
            bookmark_s = _next_bookmark(now_s, end_s, at_end=True)
        next_s = min(end_s, bookmark_s) if watch.bookmarks else end_s
        await history.wait_for_change(max(next_s - now_s, 0.0))


def _next_bookmark(now_s: float, end_s: float, *, at_end: bool) -> float:
    last_s = end_s - _BOOKMARK_BEFORE_END_S
    if now_s >= last_s:
        return float("inf") if at_end else now_s
    return min(now_s + _BOOKMARK_INTERVAL_S, last_s)


def _first_lines(store: ObjectStore, watch: Watch, encode: Encode) -> bytes:
    """Yield existing objects as ADDED lines, and a bookmark after them if requested."""
    resource = watch.target.resource
    chunk = [
        encode(resource, WatchChange("ADDED", stored, None), "ADDED")
        for stored in store.items(watch.target.collection)
        if watch.wanted.takes(stored)
    ]
    if watch.initial_events:
        chunk.append(_bookmark(resource, store.version, end_of_initial=True))
    return b"".join(chunk)


def _bookmark(resource: Resource, version: int, *, end_of_initial: bool = False) -> bytes:
    meta: dict[str, object] = {"resourceVersion": str(version), "creationTimestamp": None}
    if end_of_initial:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    body = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}
    return output.watch_line("BOOKMARK", orjson.dumps(body))


def _is_true(text: str) -> bool:
    return text.lower() in ("1", "true", "t")
