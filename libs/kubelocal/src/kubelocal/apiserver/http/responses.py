"""Answers: which form the client accepts, errors as `Status`, warnings as headers."""

from __future__ import annotations

import orjson
from hamicommon.k8s.types import Json
from starlette.responses import Response

from kubelocal.apiserver.errors import ApiError
from kubelocal.apiserver.http.warning_headers import warning_headers

JSON = "application/json"


def wants_table(accept: str) -> bool:
    """Whether the first form that we have is a Table. Raises: ApiError 406 where none is."""
    for part in accept.split(",") if accept else ["*/*"]:
        media, _, rest = part.strip().partition(";")
        parameters = dict(
            each.strip().partition("=")[::2] for each in rest.split(";") if "=" in each
        )
        if media not in (JSON, "application/*", "*/*"):
            continue
        if not parameters.get("as"):
            return False
        if parameters["as"] == "Table" and parameters.get("v") == "v1":
            return True
    raise ApiError(406, "NotAcceptable", "406: Not Acceptable", {})


def answer(body: bytes, status: int = 200, warnings: list[str] | None = None) -> Response:
    """A JSON answer of encoded bytes."""
    response = Response(body, status, media_type=JSON)
    response.raw_headers.extend((b"warning", value) for value in warning_headers(warnings or ()))
    return response


def answer_json(body: Json, status: int = 200, warnings: list[str] | None = None) -> Response:
    return answer(orjson.dumps(body), status, warnings)


def failure(error: ApiError, warnings: list[str] | None = None) -> Response:
    """The `Status` of a refused call."""
    return answer_json(error.status(), error.code, warnings)


def success(code: int, details: Json | None = None) -> Json:
    """A `Status` of kind Success."""
    body: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    if details is not None:
        return body | {"details": details}
    return body | {"code": code}
