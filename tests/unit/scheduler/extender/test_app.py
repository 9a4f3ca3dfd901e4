"""The verbs' answers leave first, what is recorded of them comes after."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

import orjson
import pytest
from hami_scheduler import activity
from hami_scheduler.activity import Activity, SchedulerLease
from hami_scheduler.background_queue import BackgroundQueue
from hami_scheduler.extender.app import ExtenderApp, ExtenderVerbs
from hami_scheduler.extender.bind import Bind
from hami_scheduler.extender.filter import Filter
from hami_scheduler.extender.host_scoring import HostScoring
from hami_scheduler.extender.protocol import MAX_BODY_BYTES, ExtenderArgs
from hamicommon.domain.ids import NodeName
from hamicommon.k8s.types import Json


class Filtering:
    """Answers with a body; its record is noted, or fails."""

    def __init__(self, done: list[str], error: Exception | None = None) -> None:
        self._done = done
        self._error = error

    async def filter(
        self, args: ExtenderArgs, *, received: float
    ) -> tuple[bytes, Callable[[], None]]:
        del args, received

        def record() -> None:
            self._done.append("recorded")
            if self._error is not None:
                raise self._error

        return b"{}", record


class Hosts:
    """Scores nothing."""

    def scores(self, args: ExtenderArgs) -> dict[NodeName, int]:
        del args
        return {}


async def call(
    done: list[str],
    filtering: Filtering,
    *,
    gone: bool = False,
    path: str = "/filter",
    lease: SchedulerLease | None = None,
    gate: Activity | None = None,
    parts: Sequence[bytes] = (b'{"Pod":{}}',),
) -> bytes:
    """The body of the answer; what was not read of `parts` is in `done`."""
    verbs = ExtenderVerbs(
        filtering=cast(Filter, filtering),
        hosts=cast(HostScoring, Hosts()),
        binding=cast(Bind, None),
        background=BackgroundQueue(),
    )
    app = ExtenderApp(verbs, activity=gate or Activity(lease), rest=cast(Any, None))
    bodies: list[bytes] = []
    left = list(parts)

    async def receive() -> dict[str, Any]:
        part = left.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(left)}

    async def send(message: Any) -> None:
        if gone:
            raise ConnectionResetError
        done.append(message["type"])
        bodies.append(message.get("body", b""))

    await app({"type": "http", "method": "POST", "path": path}, receive, send)
    done += ["unread part"] * len(left)
    return b"".join(bodies)


async def test_a_decision_is_recorded_when_its_answer_has_left() -> None:
    done: list[str] = []

    await call(done, Filtering(done))

    assert done == ["http.response.start", "http.response.body", "recorded"]


async def test_a_caller_that_has_gone_leaves_a_record_too() -> None:
    done: list[str] = []

    with pytest.raises(ConnectionResetError):
        await call(done, Filtering(done), gone=True)

    assert done == ["recorded"]


async def test_a_record_that_fails_is_logged_and_costs_no_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[str] = []

    with caplog.at_level(logging.ERROR):
        await call(done, Filtering(done, error=ValueError("poison")))

    assert done[1] == "http.response.body"
    assert [each.getMessage() for each in caplog.records] == ["failed after the answer"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/filter",
            {"Error": "this replica stands by: pod-a holds the Lease ns/lease", "NodeNames": None},
        ),
        ("/bind", {"Error": "this replica stands by: pod-a holds the Lease ns/lease"}),
        ("/prioritize", None),
    ],
)
async def test_a_replica_that_stands_by_decides_nothing_and_names_the_active_one(
    path: str, body: Json | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "ACTIVATION_TIMEOUT_S", 0.01)
    lease = SchedulerLease("ns/lease", "pod-b")
    for renewed in ("1", "2"):
        lease.on_upsert(held("pod-a_7f", renewed), None)
    done: list[str] = []

    answer = orjson.loads(await call(done, Filtering(done), path=path, lease=lease))

    assert "recorded" not in done
    if body is None:
        assert answer == []
    else:
        assert answer | body == answer


async def test_a_call_that_came_before_the_watch_saw_the_lease_waits_for_it() -> None:
    gate = Activity(SchedulerLease("ns/lease", "pod-b"))
    done: list[str] = []
    calling = asyncio.create_task(call(done, Filtering(done), gate=gate))
    await asyncio.sleep(0)
    assert not done

    gate.begin()

    assert await calling == b"{}"


async def test_a_body_that_is_too_long_is_refused_as_soon_as_that_is_known() -> None:
    done: list[str] = []
    parts = [b" " * (MAX_BODY_BYTES // 2)] * 9

    answer = await call(done, Filtering(done), parts=parts)

    assert b"the body is longer than 1048576 bytes: names of nodes are wanted here" in answer
    assert done.count("unread part") == 6


async def test_the_longest_names_of_four_thousand_nodes_are_read() -> None:
    done: list[str] = []
    names = b",".join(b'"%s"' % (b"n" * 253) for _ in range(4000))

    answer = await call(done, Filtering(done), parts=[b'{"pod":{},"nodenames":[' + names + b"]}"])

    assert answer == b"{}"


def held(identity: str, renewed: str) -> Json:
    spec = {"holderIdentity": identity, "renewTime": renewed, "leaseDurationSeconds": 6}
    return {"spec": spec}
