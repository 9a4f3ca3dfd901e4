"""The extender verbs as a bare ASGI application, in front of everything else.

kube-scheduler calls them once or more per pod and waits; a web framework's middleware would cost as
much as the decision's SQL. All other paths go on to the application of `api/app.py`. An extender
always answers 200, with what went wrong inside the result, as kube-scheduler expects.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from hamicommon import telemetry
from hamicommon.errors import HamiError, InvalidRequest
from starlette.types import ASGIApp, Receive, Scope, Send

from hami_scheduler.deferred import DeferredWrites
from hami_scheduler.extender.bind import Bind
from hami_scheduler.extender.filter import Filter
from hami_scheduler.extender.host_scoring import HostScoring
from hami_scheduler.extender.protocol import (
    FilterResult,
    HostPriorities,
    NamesReader,
    bind_result,
    parse_bind_args,
    parse_extender_args,
)

logger = logging.getLogger(__name__)

INTERNAL = "internal error of hami-scheduler; its log has the details"
# 5000 whole Node objects of a dry run are some 50 MiB; HAMi cuts at 1 MiB and fails there.
MAX_BODY_BYTES = 64 * 1024 * 1024


class Afterwards:
    """What is done about a call once its answer has left, so that nobody waits for it."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []

    def carry_out(self, path: str) -> None:
        """Does it all; what fails is logged."""
        for work in self.work:
            try:
                work()
            except Exception:  # the outermost frame
                logger.exception("failed after the answer", extra={"path": path})


Answer = Callable[[bytes, Afterwards], Awaitable[bytes]]
Refusal = Callable[[str], bytes]


class ExtenderApp:
    """Answers POST on the verbs of `_verbs`; hands everything else to `rest`."""

    def __init__(
        self,
        *,
        filtering: Filter,
        hosts: HostScoring,
        binding: Bind,
        deferred: DeferredWrites,
        rest: ASGIApp,
    ) -> None:
        self._filtering = filtering
        self._hosts = hosts
        self._binding = binding
        self._deferred = deferred
        self._rest = rest
        self._reader = NamesReader()
        self._verbs: dict[str, tuple[Answer, Refusal]] = {
            "/filter": (self._filter, lambda text: FilterResult(error=text).to_json()),
            "/prioritize": (self._prioritize, lambda text: HostPriorities().to_json()),
            "/prioritize-without-cards": (
                self._score_hosts,
                lambda text: HostPriorities().to_json(),
            ),
            "/bind": (self._bind, bind_result),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        verb = self._verbs.get(scope.get("path", ""))
        if scope["type"] != "http" or scope["method"] != "POST" or verb is None:
            await self._rest(scope, receive, send)
            return
        afterwards = Afterwards()
        body = await self._answered(scope["path"], receive, afterwards, *verb)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            if afterwards.work:
                # The answer leaves at the end of this turn of the loop (`JoinedWrites`).
                await asyncio.sleep(0)
        finally:
            afterwards.carry_out(scope["path"])

    async def _answered(
        self,
        path: str,
        receive: Receive,
        afterwards: Afterwards,
        answer: Answer,
        refusal: Refusal,
    ) -> bytes:
        """The outermost frame of a call: whatever happens, a body in the right shape."""
        try:
            asked = await _read(receive)
            with self._deferred.deciding():
                return await answer(asked, afterwards)
        except HamiError as exc:
            logger.warning("extender call refused", extra={"path": path, "error": str(exc)})
            return refusal(str(exc))
        except Exception:  # the outermost frame
            logger.exception("extender call failed", extra={"path": path})
            return refusal(INTERNAL)

    async def _filter(self, body: bytes, afterwards: Afterwards) -> bytes:
        received = time.perf_counter()
        args = self._reader.parse(body)
        with telemetry.log_context(pod_uid=str((args.pod.get("metadata") or {}).get("uid"))):
            answer, record = await self._filtering.filter(args, received=received)
        afterwards.work.append(record)
        return answer

    async def _prioritize(self, body: bytes, _: Afterwards) -> bytes:
        scores = await self._filtering.prioritize(parse_extender_args(body))
        return HostPriorities(scores=scores).to_json()

    async def _score_hosts(self, body: bytes, _: Afterwards) -> bytes:
        return HostPriorities(scores=self._hosts.scores(parse_extender_args(body))).to_json()

    async def _bind(self, body: bytes, _: Afterwards) -> bytes:
        args = parse_bind_args(body)
        with telemetry.log_context(pod_uid=args.pod_uid, node=args.node):
            return bind_result(await self._binding.bind(args))


async def _read(receive: Receive) -> bytes:
    """The whole body. Raises: InvalidRequest when it is too long or the caller has gone."""
    parts: list[bytes] = []
    length = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise InvalidRequest("the caller closed the connection before the body was complete")
        part = message.get("body", b"")
        length += len(part)
        if length > MAX_BODY_BYTES:
            raise InvalidRequest(f"the body is longer than {MAX_BODY_BYTES} bytes")
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)
