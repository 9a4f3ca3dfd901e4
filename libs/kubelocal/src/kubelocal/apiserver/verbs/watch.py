"""One watch: the lines that a client gets, from its resourceVersion until its time is over."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass

import orjson

from kubelocal.apiserver.calls import ApiTarget
from kubelocal.apiserver.errors import ApiError, bad_request
from kubelocal.apiserver.output import forms
from kubelocal.apiserver.schema.resource import Resource
from kubelocal.apiserver.storage.objects import Stored
from kubelocal.apiserver.storage.store import ObjectStore
from kubelocal.apiserver.storage.watch_cache import WatchChange, WatchSelection
from kubelocal.apiserver.verbs import get_list

# The real server draws the length of a watch without time-out from [30 min, 60 min).
_MIN_WATCH_S = 1800
_BOOKMARK_EVERY_S = 60.0
# The last bookmark comes this long before the end, so that a client resumes without a new list.
_BOOKMARK_BEFORE_END_S = 2.0

Encode = Callable[[Resource, WatchChange, str], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What a watch asks for. `version` None: everything that exists now comes first."""

    target: ApiTarget
    wanted: WatchSelection
    version: int | None
    timeout_s: float
    bookmarks: bool
    initial_events: bool


def read_watch(target: ApiTarget, query: Mapping[str, str]) -> Watch:
    """The watch that a query asks for. Raises: ApiError."""
    text = query.get("timeoutSeconds", "") or "0"
    if not text.isdigit():
        raise bad_request(f"timeoutSeconds: {text!r} is not a whole number")
    version = get_list.asked_version(query)
    initial_events = _is_true(query.get("sendInitialEvents", ""))
    return Watch(
        target=target,
        wanted=get_list.selection(target, query),
        version=None if initial_events else version or None,
        timeout_s=float(text) or _MIN_WATCH_S * (1 + random.random()),
        bookmarks=_is_true(query.get("allowWatchBookmarks", "")),
        initial_events=initial_events,
    )


def is_watch(query: Mapping[str, str]) -> bool:
    return _is_true(query.get("watch", ""))


async def lines(
    store: ObjectStore, watch: Watch, stopping: asyncio.Event, encode: Encode = forms.line
) -> AsyncIterator[bytes]:
    """Chunks of whole lines. Ends at the time-out, with an ERROR line, or when the server stops."""
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
            yield forms.watch_line("ERROR", orjson.dumps(error.status()))
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
        await history.changed(max(next_s - now_s, 0.0))


def _next_bookmark(now_s: float, end_s: float, *, at_end: bool) -> float:
    last_s = end_s - _BOOKMARK_BEFORE_END_S
    if now_s >= last_s:
        return float("inf") if at_end else now_s
    return min(now_s + _BOOKMARK_EVERY_S, last_s)


def _first_lines(store: ObjectStore, watch: Watch, encode: Encode) -> bytes:
    """What exists now, as ADDED lines, and the mark of their end where it was asked for."""
    resource = watch.target.resource
    chunk = [
        encode(resource, _as_added(stored), "ADDED")
        for stored in store.items(watch.target.collection)
        if watch.wanted.takes(stored)
    ]
    if watch.initial_events:
        chunk.append(_bookmark(resource, store.version, end_of_initial=True))
    return b"".join(chunk)


def _as_added(stored: Stored) -> WatchChange:
    return WatchChange("ADDED", stored, None)


def _bookmark(resource: Resource, version: int, *, end_of_initial: bool = False) -> bytes:
    meta: dict[str, object] = {"resourceVersion": str(version), "creationTimestamp": None}
    if end_of_initial:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    body = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}
    return forms.watch_line("BOOKMARK", orjson.dumps(body))


def _is_true(text: str) -> bool:
    return text.lower() in ("1", "true", "t")
