"""`POST /v1/adopt`: see `adopting.py`; the one call of the query API that writes."""

from __future__ import annotations

import orjson
from fastapi import APIRouter, Request, Response
from hamicommon.errors import InvalidRequest, Unavailable

from hami_scheduler.adoption.adopt import Adopter
from hami_scheduler.api.bodies import TooLong, read_json

_JSON = "application/json"
# The names of 4000 nodes, each as long as Kubernetes allows.
_MOST_BYTES = 1024 * 1024


def router(adopting: Adopter) -> APIRouter:
    """The route over the use case."""
    api = APIRouter(prefix="/v1")

    async def adopt(request: Request) -> Response:
        try:
            return _answer(await adopting.answer(await read_json(request, _MOST_BYTES)), 200)
        except TooLong as exc:
            return _answer({"error": str(exc)}, 413)
        except InvalidRequest as exc:
            return _answer({"error": str(exc)}, 400)
        except ExceptionGroup as exc:
            # One node's failure ends the round; what was written before it stays, and is found
            # held when the call is repeated.
            away, others = exc.split(Unavailable)
            if others is not None or away is None:
                raise
            return _answer({"error": str(away.exceptions[0])}, 503)
        except Unavailable as exc:
            return _answer({"error": str(exc)}, 503)

    api.add_api_route("/adopt", adopt, methods=["POST"])
    return api


def _answer(value: object, status: int) -> Response:
    return Response(orjson.dumps(value), status_code=status, media_type=_JSON)
