"""HTTP API of questions (`/api/v1/questions`) and of the bill (`/api/v1/showback`).

A caller sends only names of questions and typed parameters: no SQL, PromQL or address.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import orjson
from fastapi import APIRouter, HTTPException, Request, Response
from hamicommon.access.checks import NotAllowed, Unauthenticated
from hamicommon.errors import HamiError, InvalidRequest, NotFound
from hamicommon.ledger.questions import MAX_ROWS, PAGE_ROWS, Answer, Question, questions
from hamicommon.ledger.showback import BillFormat, PriceList, as_csv, as_focus, as_json, make_bill

from hami_metrics.questions.asking import Asking, Sender, Viewer, Viewers

API_VERSION = "hami.io/v1"
_FORMAT = orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS
# Answers depend on the caller and the time.
ANSWER_HEADERS = {"Cache-Control": "no-store", "Vary": "Authorization"}


def question_routes(asking: Asking, viewers: Viewers, cluster_name: str = "") -> APIRouter:
    """Return the routes; `cluster_name` is empty if the cluster has none."""
    api = APIRouter(prefix="/api/v1/questions")

    @api.get("")
    async def list_questions(request: Request) -> Response:
        await viewer_of(request, viewers)
        items = [describe_question(each) for each in questions().values()]
        cluster = {"cluster": cluster_name} if cluster_name else {}
        return _json({"apiVersion": API_VERSION, **cluster, "items": items})

    @api.get("/{name}")
    async def answer_question(request: Request, name: str) -> Response:
        viewer = await viewer_of(request, viewers)
        try:
            parameters = single_values(request)
            limit = _limit(parameters.pop("limit", ""))
            after = parameters.pop("after", None) or None
            found = await asking.ask(viewer, name, parameters, limit=limit, after=after)
        except HamiError as exc:
            raise refusal(exc) from exc
        return _json(answer_json(found))

    return api


async def viewer_of(request: Request, viewers: Viewers) -> Viewer:
    """Identify the caller. Raises: HTTPException (401, 403, 503)."""
    sender = Sender(
        address=request.client.host if request.client else "",
        host=request.headers.get("host", ""),
        authorizations=request.headers.getlist("authorization"),
    )
    try:
        return await viewers.viewer(sender)
    except HamiError as exc:
        raise refusal(exc) from exc


def refusal(error: HamiError) -> HTTPException:
    """Return the HTTP status of one of our errors."""
    statuses: tuple[tuple[type[HamiError], int], ...] = (
        (Unauthenticated, 401),
        (NotAllowed, 403),
        (NotFound, 404),
        (InvalidRequest, 400),
    )
    status = next((code for kind, code in statuses if isinstance(error, kind)), 503)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return HTTPException(status, str(error), headers)


def single_values(request: Request) -> dict[str, str]:
    """Return the query's parameters. Raises: InvalidRequest for a repeated one."""
    found: dict[str, str] = {}
    for key, value in request.query_params.multi_items():
        if key in found:
            raise InvalidRequest(f"parameter {key[:60]!r} appears more than once")
        found[key] = value
    return found


def answer_json(found: Answer) -> dict[str, Any]:
    """Return the answer as JSON: base units, RFC 3339; null is unknown or none."""
    return {
        "apiVersion": API_VERSION,
        "question": found.question.name,
        "title": found.question.title,
        "number": found.question.number,
        "asOf": found.as_of,
        "parameters": found.parameters,
        "columns": [column.name for column in found.question.columns],
        "rows": found.rows,
        "unknown": found.unknown,
        "recordBeganAt": found.record_began_at,
        "next": found.next,
    }


def describe_question(question: Question) -> Mapping[str, Any]:
    """Return a question's description as JSON."""
    return {
        "name": question.name,
        "number": question.number,
        "title": question.title,
        "audience": question.audience,
        "parameters": [
            {
                "name": each.name,
                "kind": each.kind,
                "meaning": each.meaning,
                "default": each.default,
                "required": each.required,
                "choices": each.choices,
            }
            for each in question.parameters
        ],
        "needs": [sorted(way) for way in question.needs],
        "columns": [
            {
                "name": each.name,
                "kind": each.kind,
                "unknown": each.unknown or None,
                "none": each.none or None,
            }
            for each in question.columns
        ],
    }


def _limit(text: str) -> int:
    if not text:
        return PAGE_ROWS
    if not (text.isascii() and text.isdigit() and len(text) < 9):
        raise InvalidRequest(f"limit: {text[:20]!r} is not a number of rows")
    return int(text)


def _json(content: Mapping[str, Any]) -> Response:
    return Response(
        orjson.dumps(content, option=_FORMAT), media_type="application/json", headers=ANSWER_HEADERS
    )


def bill_routes(asking: Asking, viewers: Viewers, prices: PriceList | None) -> APIRouter:
    """Return the routes of the bill; parameters are those of the question, and `format`."""
    api = APIRouter(prefix="/api/v1/showback")

    @api.get("")
    async def answer_bill(request: Request) -> Response:
        viewer = await viewer_of(request, viewers)
        try:
            parameters = single_values(request)
            wanted = _format(parameters.pop("format", ""))
            found = await asking.ask(viewer, "showback", parameters, limit=MAX_ROWS)
            if found.next is not None:
                raise InvalidRequest(f"the bill has more than {MAX_ROWS} lines")
        except HamiError as exc:
            raise refusal(exc) from exc
        since, until = found.parameters["since"], found.parameters["until"]
        if not isinstance(since, datetime) or not isinstance(until, datetime):
            raise TypeError("a bill needs the times since and until")
        bill = make_bill(
            found.rows,
            since=since,
            until=min(until, found.as_of),
            basis=str(found.parameters["basis"]),
            prices=prices,
        )
        if wanted is BillFormat.JSON:
            return Response(as_json(bill), media_type="application/json", headers=ANSWER_HEADERS)
        text = as_csv(bill) if wanted is BillFormat.CSV else as_focus(bill)
        return Response(text, media_type="text/csv", headers=ANSWER_HEADERS)

    return api


def _format(text: str) -> BillFormat:
    try:
        return BillFormat(text or "json")
    except ValueError:
        raise InvalidRequest(f"format: {text[:20]!r} is unknown: use json, csv or focus") from None
