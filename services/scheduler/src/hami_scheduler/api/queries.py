"""The query API (`/v1/...`): who holds what, who held it, why a pod waits, where one would go."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated

import orjson
from fastapi import APIRouter, Query, Request, Response
from hamicommon.errors import InvalidRequest, Unavailable

from hami_scheduler.api.bodies import TooLong, read_json
from hami_scheduler.api.simulate import Simulator
from hami_scheduler.ports.queries import Queries, Row

_JSON = "application/json"
# A pod and some 1500 whole Node objects; `hamictl simulate` runs where it is asked, without bound.
_SIMULATE_MOST_BYTES = 16 * 1024 * 1024


def router(queries: Queries, simulating: Simulator) -> APIRouter:
    """The routes over the ledger's answers."""
    api = APIRouter(prefix="/v1")

    async def allocations(
        node: str | None = None,
        namespace: str | None = None,
        state: str | None = None,
        pod_uid: str | None = None,
        pod_name: str | None = None,
        live: bool | None = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    ) -> Response:
        return await _items(
            queries.allocations(
                node=node,
                namespace=namespace,
                state=state,
                pod_uid=pod_uid,
                live=live,
                pod_name=pod_name,
                limit=limit,
            )
        )

    async def nodes() -> Response:
        return await _items(queries.nodes())

    async def devices(node: str | None = None) -> Response:
        return await _items(queries.devices(node=node))

    async def history(uid: str) -> Response:
        return await _items(queries.history(uid))

    async def simulate(request: Request) -> Response:
        try:
            body = await read_json(request, _SIMULATE_MOST_BYTES)
            return _answer(await simulating.answer(body), 200)
        except TooLong as exc:
            return _answer({"error": str(exc)}, 413)
        except InvalidRequest as exc:
            return _answer({"error": str(exc)}, 400)
        except Unavailable as exc:
            return _answer({"error": str(exc)}, 503)

    api.add_api_route("/allocations", allocations)
    api.add_api_route("/nodes", nodes)
    api.add_api_route("/devices", devices)
    api.add_api_route("/pods/{uid}/history", history)
    api.add_api_route("/simulate", simulate, methods=["POST"])
    return api


async def _items(rows: Awaitable[list[Row]]) -> Response:
    try:
        return _answer({"items": await rows}, 200)
    except Unavailable as exc:
        return _answer({"error": str(exc)}, 503)


def _answer(value: object, status: int) -> Response:
    return Response(orjson.dumps(value), status_code=status, media_type=_JSON)
