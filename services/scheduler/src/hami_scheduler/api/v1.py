"""The query API (`/v1/...`): who holds what, who held it, why a pod waits, where one would go.

`drift` and `dead-letters` are for who looks after the system (`hamictl drift`, `hamictl
dead-letters`). Sending a letter again and `adopt` write; all other calls read. Errors are answered
by the table of `http.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import orjson
from fastapi import APIRouter, Query, Request, Response
from hamicommon.bus.dead_letters import DeadLetter, DeadLetters
from hamicommon.domain.ids import PodUid
from hamicommon.errors import Conflict, InvalidRequest
from hamicommon.explain.answer import Explanation
from hamicommon.k8s.annotations import DEVICE_CORDON

from hami_scheduler.adoption.adopt import Adopter
from hami_scheduler.api.claim_waits import PodsByClaims
from hami_scheduler.api.explain import Explainer
from hami_scheduler.api.http import JSON, read_body, read_json
from hami_scheduler.ports.ledger import Row

if TYPE_CHECKING:
    from hami_scheduler.adapters.postgres.queries import PostgresQueries

# A pod and some 1500 whole Node objects; `hamictl simulate` runs where it is asked, without bound.
_SIMULATE_MOST_BYTES = 16 * 1024 * 1024
# The names of 4000 nodes, each as long as Kubernetes allows.
_ADOPT_MOST_BYTES = 1024 * 1024
# A letter's body is shown up to here; the largest of ours (an inventory of 16 cards) is some 8 KiB.
_SHOWN_BYTES = 16 * 1024


def ledger_routes(queries: PostgresQueries) -> APIRouter:
    """What the ledger holds, held, and found different."""
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
        return _items(
            await queries.allocations(
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
        return _items(await queries.nodes())

    async def devices(node: str | None = None) -> Response:
        return _items(await queries.devices(node=node))

    async def pods(namespace: str, name: str) -> Response:
        return _items(await queries.pods_named(namespace, name))

    async def history(uid: str) -> Response:
        return _items(await queries.history(uid))

    async def drift(
        kind: Annotated[str | None, Query(alias="class")] = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
    ) -> Response:
        return _items(await queries.drift(kind=kind, limit=limit))

    api.add_api_route("/allocations", allocations)
    api.add_api_route("/nodes", nodes)
    api.add_api_route("/devices", devices)
    api.add_api_route("/pods", pods)
    api.add_api_route("/pods/{uid}/history", history)

    async def broken_promises() -> Response:
        return _items(await queries.broken_promises())

    api.add_api_route("/drift", drift)
    api.add_api_route("/broken-promises", broken_promises)
    return api


def pod_routes(
    explainer: Explainer, simulated: Callable[[bytes], Awaitable[bytes]], adopter: Adopter
) -> APIRouter:
    """Why a pod is where it is or waits (docs/explain.md), where one would go, what to adopt.

    `simulated` answers the body of /v1/simulate, beside the event loop.
    """
    api = APIRouter(prefix="/v1")

    async def explain(uid: str, namespace: str = "", name: str = "") -> Response:
        return _json(await explainer.explain(PodUid(uid), namespace, name))

    async def simulate(request: Request) -> Response:
        answer = await simulated(await read_body(request, _SIMULATE_MOST_BYTES))
        return Response(answer, media_type=JSON)

    async def adopt(request: Request) -> Response:
        return _json(await adopter.answer(await read_json(request, _ADOPT_MOST_BYTES)))

    api.add_api_route("/pods/{uid}/explain", explain, responses={200: {"model": Explanation}})
    api.add_api_route("/simulate", simulate, methods=["POST"])
    api.add_api_route("/adopt", adopt, methods=["POST"])
    return api


def claim_routes(pods: PodsByClaims) -> APIRouter:
    """Pods that wait for kube-scheduler to allocate their ResourceClaims."""
    api = APIRouter(prefix="/v1")

    async def by_claims(namespace: str | None = None) -> Response:
        return _items(await pods.waiting(namespace))

    api.add_api_route("/pods-by-claims", by_claims)
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
    return {
        "kind": kind,
        "namespace": namespace,
        "name": name,
        "setting": setting,
        "problem": problem,
    }


def settings_routes(settings: VainSettings) -> APIRouter:
    """Settings in the cluster that have no effect."""
    api = APIRouter(prefix="/v1")

    async def vain_settings() -> Response:
        return _items(settings.rows())

    api.add_api_route("/vain-settings", vain_settings)
    return api


def letter_routes(letters: DeadLetters) -> APIRouter:
    """Messages that no service could handle."""
    api = APIRouter(prefix="/v1")

    async def dead_letters(limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Response:
        return _items([_row(letter) for letter in await letters.latest(limit)])

    async def send(sequence: int) -> Response:
        try:
            return _json(_row(await letters.send_again(sequence)))
        except InvalidRequest as exc:
            # The call is well-formed; the letter is one that may not be sent again.
            raise Conflict(str(exc)) from exc

    api.add_api_route("/dead-letters", dead_letters)
    api.add_api_route("/dead-letters/{sequence}/send", send, methods=["POST"])
    return api


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
