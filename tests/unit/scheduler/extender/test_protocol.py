"""The extender's wire format, to the byte."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import orjson
import pytest
from hami_scheduler import activity
from hami_scheduler.activity import Activity, SchedulerLease
from hami_scheduler.background_queue import BackgroundQueue
from hami_scheduler.extender.app import ExtenderApp, ExtenderVerbs
from hami_scheduler.extender.bind import Bind
from hami_scheduler.extender.filter import Filter, HostScoring
from hami_scheduler.extender.protocol import (
    MAX_BODY_BYTES,
    BindArgs,
    ExtenderArgs,
    FilterResult,
    NamesReader,
    bind_result,
    parse_bind_args,
    parse_extender_args,
)
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.domain.pod_ref import PodRef
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json
from hypothesis import given
from hypothesis import strategies as st


def test_all_five_fields_are_always_written() -> None:
    assert FilterResult(node_names=["n"]).to_json() == (
        b'{"Nodes":null,"NodeNames":["n"],"FailedNodes":null,'
        b'"FailedAndUnresolvableNodes":null,"Error":""}'
    )


def test_every_refusal_is_unresolvable_and_in_both_maps_for_older_schedulers() -> None:
    body = FilterResult(
        refused={
            NodeName("a"): "1/1 CardInsufficientMemory",
            NodeName("b"): "node unregistered",
        },
    ).to_json()

    both = b'{"a":"1/1 CardInsufficientMemory","b":"node unregistered"}'
    assert b'"FailedNodes":' + both in body
    assert b'"FailedAndUnresolvableNodes":' + both in body


@pytest.mark.parametrize("pod", ["Pod", "pod", "POD"])
@pytest.mark.parametrize("names", ["NodeNames", "nodenames", "nodeNames"])
def test_keys_are_read_in_any_case(pod: str, names: str) -> None:
    args = parse_extender_args(f'{{"{pod}": {{"a": 1}}, "{names}": ["n"]}}'.encode())

    assert args.pod == {"a": 1}
    assert args.node_names == ("n",)
    assert args.nodes is None


def test_whole_nodes_are_read_too() -> None:
    args = parse_extender_args(b'{"pod": {}, "nodes": {"items": [{"metadata": {"name": "n"}}]}}')

    assert args.nodes == ({"metadata": {"name": "n"}},)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(b"", "EOF", id="empty"),
        pytest.param(b"{}", "extender args missing pod", id="no-pod"),
        pytest.param(b'{"pod": 7}', "extender args missing pod", id="pod-is-no-object"),
        pytest.param(b"[]", "expected a JSON object", id="no-object"),
        pytest.param(b"{", "not JSON", id="no-json"),
        pytest.param(b'{"pod": {}, "nodenames": [1]}', "NodeNames must be", id="names"),
    ],
)
def test_what_can_not_be_read_is_reported_in_one_sentence(body: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parse_extender_args(body)


def test_bind_names_the_field_that_is_missing() -> None:
    with pytest.raises(InvalidRequest, match="PodUID is missing"):
        parse_bind_args(b'{"PodName": "p", "PodNamespace": "d", "Node": "n"}')


def test_bind_args_are_read_in_any_case() -> None:
    body = b'{"podName": "p", "PodNamespace": "d", "PODUID": "u", "node": "n"}'

    assert parse_bind_args(body) == BindArgs(pod=PodRef("d", "p", PodUid("u")), node=NodeName("n"))


def test_bind_answers_with_its_error_alone() -> None:
    assert bind_result("") == b'{"Error":""}'


def test_the_same_list_of_nodes_is_the_same_tuple() -> None:
    reader = NamesReader()
    body = b'{"Pod":{"n":%d},"Nodes":null,"NodeNames":["a","b"]}'

    first, second = reader.parse(body % 1), reader.parse(body % 2)

    assert second.pod == {"n": 2}
    assert second.node_names is first.node_names
    assert reader.parse(b'{"Pod":{},"NodeNames":["b","a"]}').node_names is first.node_names
    assert reader.parse(b'{"Pod":{},"NodeNames":["b","b"]}').node_names == ("b", "b")
    assert reader.parse(b'{"Pod":{},"NodeNames":["a"]}').node_names == ("a",)


ENDS = [
    '"nodenames":["a"]}',
    '"NodeNames":["a"]}',
    '"nodenames":["a","b"]}',
    '"nodenames":["b","a"]}',
    '"nodenames":["b","b"]}',
    '"nodenames":["a"],"nodes":null}',
    '"nodenames":["a"]}}',
    '"nodenames":[1]}',
    '"nodenames":null}',
    '"nodenames":[]}',
    "}",
]
HEADS = [
    '{"pod":{"x":1},',
    '{"pod":{"text":"\\"nodenames\\":["},',
    '{"pod":{},"x":{',
    '{"nodenames":["z"],"pod":{},',
    '{"pod":7,',
    "{",
    "",
]


@given(st.lists(st.tuples(st.sampled_from(HEADS), st.sampled_from(ENDS)), max_size=6))
def test_a_caller_that_repeats_itself_is_read_as_if_it_did_not(
    parts: list[tuple[str, str]],
) -> None:
    reader = NamesReader()
    for head, end in parts:
        body = (head + end).encode()
        try:
            expected = parse_extender_args(body)
        except InvalidRequest:
            with pytest.raises(InvalidRequest):
                reader.parse(body)
        else:
            args = reader.parse(body)
            # In any order: kube-scheduler's own is the one in which its threads were done.
            assert sorted(args.node_names or ()) == sorted(expected.node_names or ())
            assert replace(args, node_names=expected.node_names) == expected


@pytest.mark.parametrize("part", ["metadata", "spec"])
def test_a_pod_whose_part_is_no_object_is_refused_by_its_name(part: str) -> None:
    body = f'{{"pod": {{"{part}": 7}}, "nodenames": ["n1"]}}'.encode()

    with pytest.raises(InvalidRequest, match=f"pod.{part} must be an object"):
        parse_extender_args(body)


# --- the verbs' answers are sent first and recorded afterwards


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


async def _echo(body: bytes) -> bytes:
    return body


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
    """Return the body of the answer; unread `parts` are added to `done`."""
    verbs = ExtenderVerbs(
        filtering=cast(Filter, filtering),
        hosts=cast(HostScoring, Hosts()),
        binding=cast(Bind, None),
        preempting=cast(Any, None),
        simulating=_echo,
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
    assert [each.getMessage() for each in caplog.records] == ["Failed after the response was sent"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "/filter",
            {
                "Error": "this replica is on standby: pod-a holds the Lease ns/lease",
                "NodeNames": None,
            },
        ),
        ("/bind", {"Error": "this replica is on standby: pod-a holds the Lease ns/lease"}),
        ("/prioritize-without-cards", None),
    ],
)
async def test_a_replica_that_stands_by_decides_nothing_and_names_the_active_one(
    path: str, body: Json | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "ACTIVATION_TIMEOUT_S", 0.01)
    lease = SchedulerLease("ns/lease", "pod-b")
    for renewed in ("1", "2"):
        lease.on_upsert(build_lease("pod-a_7f", renewed), None)
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


async def test_a_replica_that_stands_by_simulates() -> None:
    gate = Activity(SchedulerLease("ns/lease", "pod-b"))
    long = b" " * (MAX_BODY_BYTES + 1)

    answer = await call([], Filtering([]), gate=gate, path="/filter-simulation", parts=[long])

    assert answer == long


async def test_a_body_that_is_too_long_is_refused_as_soon_as_that_is_known() -> None:
    done: list[str] = []
    parts = [b" " * (MAX_BODY_BYTES // 2)] * 9

    answer = await call(done, Filtering(done), parts=parts)

    assert b"the body is longer than 1048576 bytes: expected names of nodes here" in answer
    assert done.count("unread part") == 6


async def test_the_longest_names_of_four_thousand_nodes_are_read() -> None:
    done: list[str] = []
    names = b",".join(b'"%s"' % (b"n" * 253) for _ in range(4000))

    answer = await call(done, Filtering(done), parts=[b'{"pod":{},"nodenames":[' + names + b"]}"])

    assert answer == b"{}"


def build_lease(identity: str, renewed: str) -> Json:
    spec = {"holderIdentity": identity, "renewTime": renewed, "leaseDurationSeconds": 6}
    return {"spec": spec}
