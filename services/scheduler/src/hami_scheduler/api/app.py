"""HTTP on three ports: kube-scheduler's, the operators' and the probes'.

The first has the extender's verbs (`extender/app.py`), on loopback. The second has the operators'
API for tokens (`operator_access.py`): `/v1/...`, who holds what, who held it, why a pod waits,
where one would go. `drift` and `dead-letters` are for who looks after the system (`hamictl drift`,
`hamictl dead-letters`). Sending a letter again and `adopt` write; all other calls read. Errors are
answered by the table of `http.py`. The third is plain: health and metrics. Where the second or the
third is not configured, the first has their part. `bootstrap/` wires the use cases (`Service`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import orjson
from fastapi import APIRouter, FastAPI, Query, Request, Response
from hamicommon import telemetry
from hamicommon.access.checks import Access
from hamicommon.bus.dead_letters import DeadLetter, DeadLetters
from hamicommon.domain.ids import PodUid
from hamicommon.errors import Conflict, InvalidRequest, NotFound
from hamicommon.explain.answer import Explanation
from hamicommon.k8s.annotations import DEVICE_CORDON
from hamicommon.telemetry.exposition import exposition
from pydantic import BaseModel, Field
from starlette.types import ASGIApp

from hami_scheduler.activity import Activity
from hami_scheduler.adoption.adopt import Adopter
from hami_scheduler.api.explain import Explainer, UndecidedPods
from hami_scheduler.api.groups import GroupExplainer
from hami_scheduler.api.http import JSON, answer_errors, read_body, read_json
from hami_scheduler.api.operator_access import LocalCallers, OperatorAccess, by_anybody, by_token
from hami_scheduler.api.preempt import PreemptionPreviews
from hami_scheduler.extender.app import ExtenderApp, ExtenderVerbs
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.ports.ledger import Row

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.housekeeping import PostgresCallJournal
    from hami_scheduler.adapters.postgres.queries import PostgresQueries

Loop = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Every request that the operators' API and the command line can make."""

    verbs: ExtenderVerbs
    activity: Activity
    queries: PostgresQueries
    letters: DeadLetters
    explainer: Explainer
    groups: GroupExplainer
    undecided: UndecidedPods
    vain_settings: VainSettings
    simulated: Callable[[bytes], Awaitable[bytes]]
    """Answers the body of /v1/simulate."""
    preemption: PreemptionPreviews
    adopter: Adopter
    access: Access | None
    """Access rules of the operators' port; None: it is not served."""
    journal: PostgresCallJournal | None
    """Journal of calls that change something; None: only the log has them."""
    instruments: SchedulerInstruments
    readiness: Callable[[], Awaitable[Mapping[str, str]]]
    """Parts that are not ready, with the reason; empty if all are."""
    measure: Callable[[], Awaitable[None]]
    """Brings the gauges up to date."""
    loops: Sequence[tuple[str, Loop]]
    """Background work that must run while the service is up, by name."""


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
        return _json(await service.groups.explain(namespace, name))

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
    names = ("sequence", "at", "stream", "user", "subject", "consumer", "reason")
    shown = {name: getattr(letter, name) for name in names}
    return {**shown, "body": letter.data[:_SHOWN_BYTES].decode(errors="replace")}


def _items(rows: list[Row]) -> Response:
    return _json({"items": rows})


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), media_type=JSON)


def create_app(service: Service, *, probes: bool) -> ASGIApp:
    """For kube-scheduler's port; `probes`: no other port has them."""
    others = _bare_app()
    if probes:
        others.include_router(_probes(service))
    rest: ASGIApp = others
    if service.access is None:
        others.include_router(operator_routes(service))
        rest = OperatorAccess(others, by_anybody, service.activity, service.journal)
    else:
        others.include_router(_elsewhere())
    app: ASGIApp = ExtenderApp(service.verbs, activity=service.activity, rest=rest)
    return LocalCallers(app) if service.access is None else app


def create_operator_app(service: Service, access: Access) -> ASGIApp:
    """The operators' API, for who shows a token."""
    app = _bare_app()
    app.include_router(operator_routes(service))
    return OperatorAccess(app, by_token(access), service.activity, service.journal)


def create_probe_app(service: Service) -> ASGIApp:
    """Health and metrics, for the kubelet and Prometheus."""
    app = _bare_app()
    app.include_router(_probes(service))
    return app


def _elsewhere() -> APIRouter:
    api = APIRouter()

    @api.get("/v1/{path:path}")
    @api.post("/v1/{path:path}")
    async def elsewhere(path: str) -> Response:
        raise NotFound(
            f"/v1/{path} is on the operators' port, with a token (docs/hamictl-on-a-cluster.md): "
            "this one is kube-scheduler's"
        )

    return api


def _bare_app() -> FastAPI:
    app = FastAPI(
        telemetry={"operation_spans": False, "exclude": telemetry.is_probe},
        title="hami-scheduler",
        openapi_url="/v1/openapi.json",
        docs_url=None,
    )
    answer_errors(app)
    return app


def _probes(service: Service) -> APIRouter:
    api = APIRouter()

    @api.get("/healthz")
    async def healthz() -> Response:
        return Response("ok")

    @api.get("/readyz")
    async def readyz() -> Response:
        missing = await service.readiness()
        body = orjson.dumps({"ready": not missing, "missing": dict(missing)})
        return Response(body, status_code=503 if missing else 200, media_type=JSON)

    @api.get("/metrics")
    async def metrics(request: Request) -> Response:
        await service.measure()
        accept = request.headers.get("accept", "")
        text, media_type = exposition(service.instruments.registry, accept)
        return Response(text, media_type=media_type)

    return api
