"""HTTP: one request -> one verb of the registry -> one answer.

Paths without authentication are health and version, as with the real server's defaults.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial

from hamicommon.errors import Unavailable
from hamicommon.k8s.types import Json
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from kubelocal.apiserver import users
from kubelocal.apiserver.authorization import reviews
from kubelocal.apiserver.calls import ApiTarget, Caller
from kubelocal.apiserver.errors import ApiError, internal, method_not_allowed, no_such_path
from kubelocal.apiserver.http import paths, responses
from kubelocal.apiserver.kinds import patch as patching
from kubelocal.apiserver.output import forms, tables
from kubelocal.apiserver.registry import Registry
from kubelocal.apiserver.schema import discovery, openapi, openapi_proto
from kubelocal.apiserver.schema.resources import TOKEN_REVIEWS
from kubelocal.apiserver.verbs import get_list
from kubelocal.apiserver.verbs import watch as watch_stream
from kubelocal.apiserver.verbs.delete import Options, read_options
from kubelocal.apiserver.wire import bodies

logger = logging.getLogger(__name__)
_OPEN = ("/healthz", "/readyz", "/livez")
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def build_app(registry: Registry) -> Starlette:
    """The ASGI application over a registry."""
    return Starlette(routes=[Route("/{path:path}", partial(_serve, registry), methods=_METHODS)])


async def _serve(registry: Registry, request: Request) -> Response:
    warnings: list[str] = []
    try:
        return await _dispatch(registry, request, warnings)
    except ApiError as error:
        return responses.failure(error, warnings)
    except Unavailable as error:
        return responses.failure(internal(str(error)), warnings)
    except Exception as error:  # the outermost loop of a request
        logger.exception("request failed", extra={"path": request.url.path})
        return responses.failure(internal(f"{type(error).__name__} in the emulated API server"))


async def _dispatch(registry: Registry, request: Request, warnings: list[str]) -> Response:
    path = request.url.path.rstrip("/")
    if path in _OPEN or path.startswith(tuple(f"{each}/" for each in _OPEN)):
        return PlainTextResponse("ok")
    if path == "/version":
        return responses.answer_json(discovery.version())
    user = users.authenticate(request.headers.get("authorization", ""), registry.tokens)
    accept = request.headers.get("accept", "")
    if request.method == "GET" and (document := _document(registry, path, accept)) is not None:
        return document
    target = paths.parse(path)
    query = request.query_params
    caller = Caller(
        user=user,
        dry_run=bodies.check_dry_run(query.getlist("dryRun"), _options_kind(request.method)),
        field_validation=query.get("fieldValidation") or "Warn",
        warnings=warnings,
    )
    match request.method:
        case "GET":
            return _read(registry, target, request)
        case "POST":
            return await _post(registry, target, caller, request)
        case "PUT" if target.name and target.resource.stored:
            return await _put(registry, target, caller, request)
        case "PATCH" if target.name and target.resource.stored:
            return await _patch(registry, target, caller, request)
        case "DELETE" if not target.subresource and target.resource.stored:
            return await _delete(registry, target, caller, request)
    raise method_not_allowed()


def _document(registry: Registry, path: str, accept: str) -> Response | None:
    """Discovery and OpenAPI, or None where the path is an object's."""
    if (found := discovery.answer(path, registry.address)) is not None:
        return responses.answer_json(found)
    if path == "/openapi/v2":
        if "protobuf" in accept:
            # Old kubectls cannot parse the media type that they ask for; the real server of
            # their time calls the document a stream of bytes too.
            return Response(openapi_proto.document(), media_type="application/octet-stream")
        return responses.answer_json(openapi.v2())
    if path == "/openapi/v3":
        return responses.answer_json(openapi.v3_index())
    if path.startswith("/openapi/v3/"):
        document = openapi.v3(path.removeprefix("/openapi/v3/"))
        if document is None:
            raise no_such_path()
        return responses.answer_json(document)
    return None


def _read(registry: Registry, target: ApiTarget, request: Request) -> Response:
    if not target.resource.stored or target.subresource not in (
        "",
        "status",
        "ephemeralcontainers",
    ):
        raise method_not_allowed()
    query = request.query_params
    table = responses.wants_table(request.headers.get("accept", ""))
    include = query.get("includeObject") or "Metadata"
    if watch_stream.is_watch(query):
        watch = watch_stream.read_watch(target, query)
        encode = partial(tables.table_line, include=include) if table else forms.line
        lines = watch_stream.lines(registry.store, watch, registry.stopping, encode)
        return StreamingResponse(lines, media_type=responses.JSON)
    if target.name:
        stored = get_list.get(registry.store, target)
        meta: dict[str, str | int] = {"resourceVersion": str(stored.version)}
        if table:
            return responses.answer(tables.table(target.resource, [stored], meta, include))
        return responses.answer(forms.whole(target.resource, stored))
    page = get_list.list_page(registry.store, target, query)
    if table:
        body = tables.table(target.resource, page.objects, page.metadata(), include)
        return responses.answer(body)
    return responses.answer(get_list.encode_list(target, page))


async def _post(
    registry: Registry, target: ApiTarget, caller: Caller, request: Request
) -> Response:
    resource = target.resource
    if target.subresource == "eviction":
        await registry.deleting.delete(
            ApiTarget(resource=resource, namespace=target.namespace, name=target.name),
            caller,
            read_options((await _json(request, "Eviction")).get("deleteOptions") or {}, None, None),
        )
        return responses.answer_json(responses.success(201), 201, caller.warnings)
    if resource.kind == "Binding" or target.subresource == "binding":
        sent = await _json(request, "Binding")
        await registry.binding.bind(target.namespace, target.name, caller, sent)
        return responses.answer_json(responses.success(201), 201, caller.warnings)
    if target.name or (resource.namespaced and not target.namespace):
        raise method_not_allowed()
    if resource in reviews.REVIEWS:
        return await _review(registry, target, caller, request)
    stored = await registry.writing.create(target, caller, await _json(request, resource.kind))
    return responses.answer(forms.whole(resource, stored), 201, caller.warnings)


async def _review(
    registry: Registry, target: ApiTarget, caller: Caller, request: Request
) -> Response:
    resource = target.resource
    body = bodies.read_object(target, caller, await _json(request, resource.kind))
    status = (
        reviews.review_token(registry.tokens, body)
        if resource is TOKEN_REVIEWS
        else reviews.review_access(registry.store, body)
    )
    answer = bodies.for_webhook(resource, body) | {"status": status}
    return responses.answer_json(answer, 201, caller.warnings)


async def _put(registry: Registry, target: ApiTarget, caller: Caller, request: Request) -> Response:
    sent = await _json(request, target.resource.kind)
    stored, created = await registry.writing.replace(target, caller, sent)
    body = forms.whole(target.resource, stored)
    return responses.answer(body, 201 if created else 200, caller.warnings)


async def _patch(
    registry: Registry, target: ApiTarget, caller: Caller, request: Request
) -> Response:
    media = request.headers.get("content-type", "").partition(";")[0].strip()
    patch = patching.read_patch(media, await request.body())
    stored = await registry.writing.patch(target, caller, media, patch)
    return responses.answer(forms.whole(target.resource, stored), 200, caller.warnings)


async def _delete(
    registry: Registry, target: ApiTarget, caller: Caller, request: Request
) -> Response:
    query = request.query_params
    has_body = bool(await request.body())
    sent = await _json(request, "DeleteOptions") if has_body else {}
    if sent.get("dryRun"):
        bodies.check_dry_run(list(sent["dryRun"]), "DeleteOptions")
        caller = Caller(user=caller.user, dry_run=True, warnings=caller.warnings)
    options = read_options(sent, query.get("gracePeriodSeconds"), query.get("propagationPolicy"))
    if not target.name:
        return await _delete_collection(registry, target, caller, options, query)
    stored, gone = await registry.deleting.delete(target, caller, options)
    resource = target.resource
    if gone and not resource.returns_deleted:
        details: Json = {"name": target.name, "kind": resource.plural, "uid": stored.uid}
        if resource.group:
            details["group"] = resource.group
        return responses.answer_json(responses.success(200, details), 200, caller.warnings)
    return responses.answer(forms.whole(resource, stored), 200, caller.warnings)


async def _delete_collection(
    registry: Registry,
    target: ApiTarget,
    caller: Caller,
    options: Options,
    query: Mapping[str, str],
) -> Response:
    page = get_list.list_page(registry.store, target, query)
    for stored in page.objects:
        one = ApiTarget(resource=target.resource, namespace=stored.namespace, name=stored.name)
        try:
            await registry.deleting.delete(one, caller, options)
        except ApiError as error:
            if error.code != 404:
                raise
    return responses.answer(get_list.encode_list(target, page), 200, caller.warnings)


async def _json(request: Request, kind: str) -> Json:
    media = request.headers.get("content-type", "")
    return bodies.decode(media, await request.body(), kind)


def _options_kind(method: str) -> str:
    return {"POST": "CreateOptions", "PUT": "UpdateOptions", "PATCH": "PatchOptions"}.get(
        method, "DeleteOptions"
    )
