"""`/api/v1/showback`: the question `showback` as a bill: JSON, CSV or FOCUS."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter, Request, Response
from hamicommon.errors import HamiError, InvalidRequest
from hamicommon.ledger.questions import MOST_ROWS
from hamicommon.ledger.showback.bill import make_bill
from hamicommon.ledger.showback.formats import BillFormat, as_csv, as_focus, as_json
from hamicommon.ledger.showback.prices import PriceList

from hami_metrics.questions.asking import Asking
from hami_metrics.questions.routes import ANSWER_HEADERS, refusal, single_values, viewer_of
from hami_metrics.questions.viewers import Viewers


def bill_routes(asking: Asking, viewers: Viewers, prices: PriceList | None) -> APIRouter:
    """It takes the parameters of the question, and `format`."""
    api = APIRouter(prefix="/api/v1/showback")

    @api.get("")
    async def billed(request: Request) -> Response:
        viewer = await viewer_of(request, viewers)
        try:
            parameters = single_values(request)
            wanted = _format(parameters.pop("format", ""))
            found = await asking.ask(viewer, "showback", parameters, limit=MOST_ROWS)
            if found.next is not None:
                raise InvalidRequest(f"the bill has more than {MOST_ROWS} lines")
        except HamiError as exc:
            raise refusal(exc) from exc
        since, until = found.parameters["since"], found.parameters["until"]
        if not isinstance(since, datetime) or not isinstance(until, datetime):
            raise TypeError("showback is asked about a time")
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
        raise InvalidRequest(f"format: {text[:20]!r} is none; it is json, csv or focus") from None
