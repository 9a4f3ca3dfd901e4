"""ASGI application of the extender's verbs.

kube-scheduler calls them once or more per pod and waits; the middleware of a web framework would
cost as much as the SQL of a decision. All other paths go to the application of `api/app.py`. A
standby replica refuses all calls except simulations. The status is always 200, with errors inside
the result, as kube-scheduler expects.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass

from hamicommon import telemetry
from hamicommon.errors import HamiError, InvalidRequest
from starlette.types import ASGIApp, Receive, Scope, Send

from hami_scheduler.activity import Activity
from hami_scheduler.background_queue import BackgroundQueue
from hami_scheduler.extender import protocol
from hami_scheduler.extender.bind import Bind
from hami_scheduler.extender.filter import Filter, HostScoring

logger = logging.getLogger(__name__)

SIMULATION = "filter-simulation"
"""Verb that standby replicas answer, too, as it decides nothing."""
INTERNAL = "internal error of hami-scheduler; its log has the details"

Record = Callable[[], None]
"""Function that records a call after its response was sent."""
Answer = Callable[[bytes], Awaitable[bytes | tuple[bytes, Record]]]
Refusal = Callable[[str], bytes]


@dataclass(eq=False, kw_only=True)
class ExtenderVerbs:
    """Answer the verbs."""

    filtering: Filter
    hosts: HostScoring
    binding: Bind
    preempting: Callable[[bytes], Awaitable[bytes]]
    simulating: Callable[[bytes], Awaitable[bytes]]
    background: BackgroundQueue
    """Queue that waits while calls are answered."""

    def __post_init__(self) -> None:
        self._reader = protocol.NamesReader()
        self._verbs: dict[str, tuple[Answer, Refusal]] = {
            "filter": (self._filter, lambda text: protocol.FilterResult(error=text).to_json()),
            "prioritize-without-cards": (self._score_hosts, lambda _: protocol.host_priorities()),
            "bind": (self._bind, protocol.bind_result),
            "preempt": (self.preempting, protocol.no_victims),
            SIMULATION: (self.simulating, lambda text: protocol.FilterResult(error=text).to_json()),
        }

    def __contains__(self, verb: str) -> bool:
        return verb in self._verbs

    async def answer(self, verb: str, body: bytes) -> tuple[bytes, Record]:
        """Answer a call; errors become a body in the verb's form."""
        answer, _ = self._verbs[verb]
        try:
            # No decision waits for a simulation, so it does not delay writes either.
            with nullcontext() if verb == SIMULATION else self.background.request():
                answered = await answer(body)
        except HamiError as exc:
            return self.refuse(verb, exc), _nothing
        except Exception:  # the outermost frame
            logger.exception("Failed to answer an extender call", extra={"verb": verb})
            _, refusal = self._verbs[verb]
            return refusal(INTERNAL), _nothing
        text, record = (answered, _nothing) if isinstance(answered, bytes) else answered
        return text, lambda: _carry_out(verb, record)

    def refuse(self, verb: str, error: HamiError) -> bytes:
        """Return the answer for a call that can't be carried out."""
        logger.warning("Refused an extender call", extra={"verb": verb, "error": str(error)})
        _, refusal = self._verbs[verb]
        return refusal(str(error))

    async def _filter(self, body: bytes) -> tuple[bytes, Record]:
        received = time.perf_counter()
        args = self._reader.parse(body)
        with telemetry.log_context(pod_uid=str((args.pod.get("metadata") or {}).get("uid"))):
            return await self.filtering.filter(args, received=received)

    async def _score_hosts(self, body: bytes) -> bytes:
        return protocol.host_priorities(self.hosts.scores(protocol.parse_extender_args(body)))

    async def _bind(self, body: bytes) -> bytes:
        args = protocol.parse_bind_args(body)
        with telemetry.log_context(pod_uid=args.pod.uid, node=args.node):
            return protocol.bind_result(await self.binding.bind(args))


def _nothing() -> None:
    pass


def _carry_out(verb: str, record: Record) -> None:
    """Run the function, and log its failure."""
    try:
        record()
    except Exception:  # the outermost frame
        logger.exception("Failed after the response was sent", extra={"verb": verb})


@dataclass(frozen=True)
class ExtenderApp:
    """ASGI application: POST on verbs is answered here, everything else by `rest`."""

    verbs: ExtenderVerbs
    _: KW_ONLY
    activity: Activity
    rest: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI call."""
        verb = scope.get("path", "").removeprefix("/")
        if scope["type"] != "http" or scope["method"] != "POST" or verb not in self.verbs:
            await self.rest(scope, receive, send)
            return
        body, record = await self._answer(verb, receive)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            if record is not None:
                # The answer leaves at the end of this turn of the loop (`JoinedWrites`).
                await asyncio.sleep(0)
        finally:
            if record is not None:
                record()

    async def _answer(self, verb: str, receive: Receive) -> tuple[bytes, Record | None]:
        try:
            asked = await _read(receive, *_LIMITS.get(verb, _USUAL_LIMIT))
            if verb != SIMULATION:
                await self.activity.wait()
        except HamiError as exc:
            return self.verbs.refuse(verb, exc), None
        return await self.verbs.answer(verb, asked)


_USUAL_LIMIT = (
    protocol.MAX_BODY_BYTES,
    "expected names of nodes here (nodeCacheCapable: true); ask /filter-simulation about whole "
    "Node objects",
)
_LIMITS = {SIMULATION: (protocol.MAX_SIMULATION_BYTES, "ask about fewer nodes in one call")}
"""The longest body of a verb, and the advice to a caller with a longer one."""


async def _read(receive: Receive, max_bytes: int, advice: str) -> bytes:
    """Read the whole body.

    Raises: InvalidRequest when it is too long, before the rest is read, or the caller has gone.
    """
    parts: list[bytes] = []
    length = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise InvalidRequest("the caller closed the connection before the body was complete")
        part = message.get("body", b"")
        length += len(part)
        if length > max_bytes:
            raise InvalidRequest(f"the body is longer than {max_bytes} bytes: {advice}")
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)
