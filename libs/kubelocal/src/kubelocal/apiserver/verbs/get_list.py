"""Get and list: which objects, in which order, in pages.

A page token holds the version of the first page: where the past since then is forgotten the token
has expired, and otherwise a watch from that version brings a paging client up to date.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from kubelocal.apiserver.calls import ApiTarget
from kubelocal.apiserver.errors import ApiError, bad_request
from kubelocal.apiserver.output import forms
from kubelocal.apiserver.storage import selectors
from kubelocal.apiserver.storage.objects import Stored
from kubelocal.apiserver.storage.store import ObjectStore
from kubelocal.apiserver.storage.watch_cache import WatchSelection


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The objects of one answer, and where the next page starts."""

    version: int
    objects: list[Stored]
    token: str = ""
    remaining: int = 0

    def metadata(self) -> dict[str, str | int]:
        """The `metadata` of the list."""
        meta: dict[str, str | int] = {"resourceVersion": str(self.version)}
        if self.token:
            meta |= {"continue": self.token, "remainingItemCount": self.remaining}
        return meta


def selection(target: ApiTarget, query: Mapping[str, str]) -> WatchSelection:
    """What the selectors of a query take. Raises: ApiError (400)."""
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
    """The resourceVersion parameter; None where it is absent or empty. Raises: ApiError."""
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


def get(store: ObjectStore, target: ApiTarget) -> Stored:
    """Raises: ApiError (404)."""
    stored = store.get(target.collection, target.namespace, target.name)
    if stored is None:
        raise target.not_found()
    return stored


def list_page(store: ObjectStore, target: ApiTarget, query: Mapping[str, str]) -> Page:
    """The asked page of a list. Raises: ApiError."""
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
    """The JSON of a list, spliced from the stored bytes."""
    resource = target.resource
    head = orjson.dumps(
        {
            "kind": f"{resource.kind}List",
            "apiVersion": resource.api_version,
            "metadata": page.metadata(),
        }
    )
    items = b",".join([forms.item(resource, stored) for stored in page.objects])
    return head[:-1] + b',"items":[' + items + b"]}"


def _limit(query: Mapping[str, str]) -> int:
    text = query.get("limit", "") or "0"
    if not text.lstrip("-").isdigit():
        raise bad_request(f"limit: {text!r} is not a whole number")
    return max(int(text), 0)


def _token(version: int, last: Stored) -> str:
    return base64.urlsafe_b64encode(orjson.dumps([version, *last.key[1:]])).decode()


def _read_token(token: str) -> tuple[int, tuple[str, str]]:
    try:
        version, namespace, name = orjson.loads(base64.urlsafe_b64decode(token))
        return int(version), (str(namespace), str(name))
    except (binascii.Error, ValueError, TypeError) as error:
        raise bad_request(f"continue key is not valid: {token}") from error
