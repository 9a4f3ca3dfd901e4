"""HTTP front end: map each request to a verb of the registry.

Paths without authentication are health and version, as with the real server's defaults.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

import orjson
from hamicommon.errors import Unavailable
from hamicommon.k8s.types import Json
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from kubelocal.apiserver import calls, output
from kubelocal.apiserver.calls import ApiTarget, Caller, User
from kubelocal.apiserver.errors import ApiError, internal, method_not_allowed, no_such_path
from kubelocal.apiserver.kinds import patch as patching
from kubelocal.apiserver.schema import discovery
from kubelocal.apiserver.schema.resources import BINDINGS, BY_PATH, PODS, VERSION
from kubelocal.apiserver.storage.store import ObjectStore
from kubelocal.apiserver.verbs import reading
from kubelocal.apiserver.verbs.create_update import CreateUpdate
from kubelocal.apiserver.verbs.delete import Bindings, Delete, Options, read_options
from kubelocal.apiserver.wire import bodies


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """Verbs on one store."""

    store: ObjectStore
    writing: CreateUpdate
    deleting: Delete
    binding: Bindings
    tokens: dict[str, User]
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self) -> None:
        """End all watches, so that the server can close."""
        self.stopping.set()
        for history in self.store.histories.values():
            history.wake()


logger = logging.getLogger(__name__)
_JSON = "application/json"
_OPEN = ("/healthz", "/readyz", "/livez")
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
_OPTIONS_KINDS = {"POST": "CreateOptions", "PUT": "UpdateOptions", "PATCH": "PatchOptions"}
_READABLE = ("", "status", "ephemeralcontainers")
# Beyond 4096 characters in all, the real server cuts each warning.
MAX_WARNINGS_CHARACTERS, MAX_WARNING_CHARACTERS = 4096, 256


def build_app(registry: Registry) -> Starlette:
    """Return the ASGI application of a registry."""
    return Starlette(routes=[Route("/{path:path}", partial(_serve, registry), methods=_METHODS)])


def parse_path(path: str) -> ApiTarget:
    """Parse `/api/v1/namespaces/NS/pods/NAME/status`. Raises: ApiError (404) for other paths."""
    match [part for part in path.split("/") if part]:
        case ["api", version, *rest] if version == VERSION and rest:
            group = ""
        case ["apis", group, version, *rest] if version == VERSION and rest:
            pass
        case _:
            raise no_such_path()
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and (group, rest[2]) in BY_PATH:
        namespace, rest = rest[1], rest[2:]
    resource = BY_PATH.get((group, rest[0]))
    if resource is None or len(rest) > 3:
        raise no_such_path()
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if subresource and subresource not in resource.subresources:
        raise no_such_path()
    if bool(namespace) != resource.namespaced and (namespace or name):
        raise no_such_path()
    return ApiTarget(resource=resource, namespace=namespace, name=name, subresource=subresource)


def warning_headers(texts: Iterable[str]) -> list[bytes]:
    """Return the values of the `Warning` headers: each text once, without control characters."""
    fit = [text for text in dict.fromkeys(texts) if text and text.isprintable()]
    if sum(map(len, fit)) > MAX_WARNINGS_CHARACTERS:
        count = MAX_WARNINGS_CHARACTERS // MAX_WARNING_CHARACTERS
        fit = [text[:MAX_WARNING_CHARACTERS] for text in fit[:count]]
    quoted = (text.replace("\\", "\\\\").replace('"', '\\"') for text in fit)
    return [f'299 - "{text}"'.encode() for text in quoted]


async def _serve(registry: Registry, request: Request) -> Response:
    warnings: list[str] = []
    try:
        return await _dispatch(registry, request, warnings)
    except ApiError as error:
        return _failure(error, warnings)
    except Unavailable as error:
        return _failure(internal(str(error)), warnings)
    except Exception as error:  # the outermost loop of a request
        logger.exception("Failed to answer a request", extra={"path": request.url.path})
        return _failure(internal(f"{type(error).__name__} in the emulated API server"), warnings)


async def _dispatch(registry: Registry, request: Request, warnings: list[str]) -> Response:
    path = request.url.path.rstrip("/")
    if path in _OPEN or path.startswith(tuple(f"{each}/" for each in _OPEN)):
        return PlainTextResponse("ok")
    if path == "/version":
        return _answer(discovery.version())
    user = calls.authenticate(request.headers.get("authorization", ""), registry.tokens)
    if request.method == "GET" and path == "/openapi/v2":
        # Old kubectls cannot parse the media type that they ask for; the real server of their time
        # calls the document a stream of bytes too.
        return Response(discovery.openapi(), media_type="application/octet-stream")
    if request.method == "GET" and (found := discovery.discover(path)) is not None:
        return _answer(found)
    target = parse_path(path)
    query = request.query_params
    options_kind = _OPTIONS_KINDS.get(request.method, "DeleteOptions")
    caller = Caller(
        user=user,
        dry_run=bodies.check_dry_run(query.getlist("dryRun"), options_kind),
        field_validation=query.get("fieldValidation") or "Warn",
        warnings=warnings,
    )
    stored = target.resource.stored
    match request.method:
        case "GET" if stored and target.subresource in _READABLE:
            return _read(registry, target, request)
        case "POST":
            return await _post(registry, target, caller, request)
        case "PUT" if stored and target.name:
            sent = await _json(request, target.resource.kind)
            replaced = await registry.writing.replace(target, caller, sent)
            return _answer(output.whole(target.resource, replaced), 200, warnings)
        case "PATCH" if stored and target.name:
            media = request.headers.get("content-type", "").partition(";")[0].strip()
            patch = patching.read_patch(media, await request.body())
            patched = await registry.writing.patch(target, caller, media, patch)
            return _answer(output.whole(target.resource, patched), 200, warnings)
        case "DELETE" if stored and not target.subresource:
            return await _delete(registry, target, caller, request)
    raise method_not_allowed()


def _read(registry: Registry, target: ApiTarget, request: Request) -> Response:
    query = request.query_params
    table = _wants_table(request.headers.get("accept", ""))
    include = query.get("includeObject") or "Metadata"
    if reading.is_watch(query):
        watch = reading.read_watch(target, query)
        encode = partial(output.table_line, include=include) if table else output.line
        lines = reading.lines(registry.store, watch, registry.stopping, encode)
        return StreamingResponse(lines, media_type=_JSON)
    if target.name:
        stored = reading.get(registry.store, target)
        meta: dict[str, str | int] = {"resourceVersion": str(stored.version)}
        if table:
            return _answer(output.table(target.resource, [stored], meta, include))
        return _answer(output.whole(target.resource, stored))
    page = reading.list_page(registry.store, target, query)
    if table:
        return _answer(output.table(target.resource, page.objects, page.metadata(), include))
    return _answer(reading.encode_list(target, page))


async def _post(
    registry: Registry, target: ApiTarget, caller: Caller, request: Request
) -> Response:
    resource = target.resource
    if target.subresource == "eviction":
        sent = await _json(request, "Eviction")
        pod = ApiTarget(resource=PODS, namespace=target.namespace, name=target.name)
        options = read_options(sent.get("deleteOptions") or {}, None)
        await registry.deleting.delete(pod, caller, options)
        return _answer(_success() | {"code": 201}, 201, caller.warnings)
    if resource is BINDINGS or target.subresource == "binding":
        sent = await _json(request, "Binding")
        await registry.binding.bind(target.namespace, target.name, caller, sent)
        return _answer(_success() | {"code": 201}, 201, caller.warnings)
    if target.name or (resource.namespaced and not target.namespace):
        raise method_not_allowed()
    stored = await registry.writing.create(target, caller, await _json(request, resource.kind))
    return _answer(output.whole(resource, stored), 201, caller.warnings)


async def _delete(
    registry: Registry, target: ApiTarget, caller: Caller, request: Request
) -> Response:
    query, resource = request.query_params, target.resource
    sent = await _json(request, "DeleteOptions") if await request.body() else {}
    if sent.get("dryRun"):
        bodies.check_dry_run(list(sent["dryRun"]), "DeleteOptions")
        caller = Caller(user=caller.user, dry_run=True, warnings=caller.warnings)
    options = read_options(sent, query.get("gracePeriodSeconds"))
    if not target.name:
        page = reading.list_page(registry.store, target, query)
        for stored in page.objects:
            one = ApiTarget(resource=resource, namespace=stored.namespace, name=stored.name)
            await _delete_listed(registry, one, caller, options)
        return _answer(reading.encode_list(target, page), 200, caller.warnings)
    stored, gone = await registry.deleting.delete(target, caller, options)
    if gone and resource is not PODS:
        details = {"name": target.name, "kind": resource.plural, "uid": stored.uid}
        if resource.group:
            details["group"] = resource.group
        return _answer(_success() | {"details": details}, 200, caller.warnings)
    return _answer(output.whole(resource, stored), 200, caller.warnings)


async def _delete_listed(
    registry: Registry, target: ApiTarget, caller: Caller, options: Options
) -> None:
    """Delete an object of a list, unless it is already gone."""
    try:
        await registry.deleting.delete(target, caller, options)
    except ApiError as error:
        if error.code != 404:
            raise


async def _json(request: Request, kind: str) -> Json:
    media = request.headers.get("content-type", "")
    return bodies.decode(media, await request.body(), kind)


def _wants_table(accept: str) -> bool:
    """Return whether the client prefers a Table.

    Raises: ApiError 406 if it accepts none of ours.
    """
    for part in accept.split(",") if accept else ["*/*"]:
        media, *parameters = (each.strip() for each in part.split(";"))
        if media not in (_JSON, "application/*", "*/*"):
            continue
        if not any(each.startswith("as=") for each in parameters):
            return False
        if {"as=Table", "v=v1"} <= set(parameters):
            return True
    raise ApiError(406, "NotAcceptable", "406: Not Acceptable", {})


def _answer(body: bytes | Json, status: int = 200, warnings: Iterable[str] = ()) -> Response:
    """Return a JSON response, from encoded bytes or an object."""
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    response = Response(content, status, media_type=_JSON)
    response.raw_headers.extend((b"warning", value) for value in warning_headers(warnings))
    return response


def _failure(error: ApiError, warnings: Iterable[str]) -> Response:
    """Return the response for a refused call."""
    return _answer(error.status(), error.code, warnings)


def _success() -> Json:
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
