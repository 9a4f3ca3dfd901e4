"""The query API (`/v1/...`): who holds what, who held it, why a pod waits, where one would go.

`drift` and `dead-letters` are for who looks after the system (`hamictl drift`, `hamictl
dead-letters`). Sending a letter again and `adopt` write; all other calls read. Errors are answered
by the table of `http.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import orjson
from fastapi import APIRouter, Query, Request, Response
from hamicommon.bus.dead_letters import DeadLetter
from hamicommon.domain.ids import PodUid
from hamicommon.errors import Conflict, InvalidRequest
from hamicommon.explain.answer import Explanation
from hamicommon.k8s.annotations import DEVICE_CORDON
from pydantic import BaseModel, Field

from hami_scheduler.api.http import JSON, read_body, read_json
from hami_scheduler.ports.ledger import Row

if TYPE_CHECKING:
    from hami_scheduler.api.service import Service

# A pod and some 1500 whole Node objects; `hamictl simulate` runs where it is asked, without bound.
_MAX_SIMULATE_BYTES = 16 * 1024 * 1024
# One pod.
_MAX_PREEMPT_BYTES = 2 * 1024 * 1024
# The names of 4000 nodes, each as long as Kubernetes allows.
_MAX_ADOPT_BYTES = 1024 * 1024
# A letter's body is shown up to here; the largest of ours (an inventory of 16 cards) is some 8 KiB.
_SHOWN_BYTES = 16 * 1024


class AllocationFilter(BaseModel):
    """Which allocations are wanted."""

    node: str | None = None
    namespace: str | None = None
    state: str | None = None
    pod_uid: str | None = None
    pod_name: str | None = None
    live: bool | None = None
    limit: Annotated[int, Field(ge=1, le=10_000)] = 1000


def operator_routes(service: Service) -> APIRouter:
    """Return the routes of the query API."""
    api = APIRouter(prefix="/v1")

    @api.get("/allocations")
    async def allocations(wanted: Annotated[AllocationFilter, Query()]) -> Response:
        return _items(await service.queries.allocations(**wanted.model_dump()))

    @api.get("/nodes")
    async def nodes() -> Response:
        return _items(await service.queries.nodes())

    @api.get("/devices")
    async def devices(node: str | None = None) -> Response:
        return _items(await service.queries.devices(node=node))

    @api.get("/pods")
    async def pods(namespace: str, name: str) -> Response:
        return _items(await service.queries.pods_named(namespace, name))

    @api.get("/pods/{uid}/history")
    async def history(uid: str) -> Response:
        return _items(await service.queries.history(uid))

    @api.get("/drift")
    async def drift(
        kind: Annotated[str | None, Query(alias="class")] = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    ) -> Response:
        return _items(await service.queries.drift(kind=kind, limit=limit))

    @api.get("/broken-promises")
    async def broken_promises() -> Response:
        return _items(await service.queries.broken_promises())

    @api.get("/pods/{uid}/explain", responses={200: {"model": Explanation}})
    async def explain(uid: str, namespace: str = "", name: str = "") -> Response:
        return _json(await service.explainer.explain(PodUid(uid), namespace, name))

    @api.get("/groups/{namespace}/{name}")
    async def group(namespace: str, name: str) -> Response:
        return _json(service.groups.explain(namespace, name))

    @api.post("/simulate")
    async def simulate(request: Request) -> Response:
        answer = await service.simulated(await read_body(request, _MAX_SIMULATE_BYTES))
        return Response(answer, media_type=JSON)

    @api.post("/preempt")
    async def preempt(request: Request) -> Response:
        body = await read_json(request, _MAX_PREEMPT_BYTES)
        return Response(await service.preemption.answer(body), media_type=JSON)

    @api.post("/adopt")
    async def adopt(request: Request) -> Response:
        return _json(await service.adopter.answer(await read_json(request, _MAX_ADOPT_BYTES)))

    @api.get("/undecided-pods")
    async def undecided(namespace: str | None = None) -> Response:
        return _items(await service.undecided.waiting(namespace))

    @api.get("/vain-settings")
    async def vain_settings() -> Response:
        return _items(service.vain_settings.rows())

    @api.get("/dead-letters")
    async def dead_letters(limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Response:
        return _items([_row(letter) for letter in await service.letters.latest(limit)])

    @api.post("/dead-letters/{sequence}/send")
    async def send(sequence: int) -> Response:
        try:
            return _json(_row(await service.letters.send_again(sequence)))
        except InvalidRequest as exc:
            # The call is well-formed; the letter is one that may not be sent again.
            raise Conflict(str(exc)) from exc

    return api


@dataclass(frozen=True, slots=True, kw_only=True)
class VainSettings:
    """Quotas that limit nothing and cordons of no card, as this replica's watches know them.

    Both mappings are theirs and change; `hamictl doctor` and `hamictl get quotas` show the rows.
    """

    quotas: Mapping[tuple[str, str], Mapping[str, str]]
    """(namespace, name) -> key -> reason."""
    cordons: Mapping[str, Mapping[str, str]]
    """Node -> entry -> reason."""

    def rows(self) -> list[Row]:
        """One row for each, quotas first."""
        return [
            *(
                _vain_setting("ResourceQuota", namespace, name, key, why)
                for (namespace, name), mistakes in sorted(self.quotas.items())
                for key, why in mistakes.items()
            ),
            *(
                _vain_setting("Node", None, node, DEVICE_CORDON, why)
                for node, unmatched in sorted(self.cordons.items())
                for why in unmatched.values()
            ),
        ]


def _vain_setting(kind: str, namespace: str | None, name: str, setting: str, problem: str) -> Row:
    about = {"kind": kind, "namespace": namespace, "name": name}
    return {**about, "setting": setting, "problem": problem}


def _row(letter: DeadLetter) -> Row:
    return {
        "sequence": letter.sequence,
        "at": letter.at,
        "stream": letter.stream,
        "user": letter.user,
        "subject": letter.subject,
        "consumer": letter.consumer,
        "reason": letter.reason,
        "body": letter.data[:_SHOWN_BYTES].decode(errors="replace"),
    }


def _items(rows: list[Row]) -> Response:
    return _json({"items": rows})


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), media_type=JSON)
