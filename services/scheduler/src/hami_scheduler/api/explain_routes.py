"""`GET /v1/pods/{uid}/explain`: why a pod is where it is, or waits (docs/explain.md)."""

from __future__ import annotations

import orjson
from fastapi import APIRouter, Response
from hamicommon.domain.ids import PodUid
from hamicommon.errors import NotFound, Unavailable
from hamicommon.explain.answer import Explanation

from hami_scheduler.api.explain import Explainer


def router(explaining: Explainer) -> APIRouter:
    """The route over the use case."""
    api = APIRouter(prefix="/v1")

    async def explain(uid: str, namespace: str = "", name: str = "") -> Response:
        try:
            return _answer(await explaining.explain(PodUid(uid), namespace, name), 200)
        except NotFound as exc:
            return _answer({"error": str(exc)}, 404)
        except Unavailable as exc:
            return _answer({"error": str(exc)}, 503)

    api.add_api_route("/pods/{uid}/explain", explain, responses={200: {"model": Explanation}})
    return api


def _answer(value: object, status: int) -> Response:
    return Response(orjson.dumps(value), status_code=status, media_type="application/json")
