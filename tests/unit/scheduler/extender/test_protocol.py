"""The extender's wire format, to the byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hami_scheduler.extender.protocol import (
    BindArgs,
    FilterResult,
    NamesReader,
    bind_result,
    parse_bind_args,
    parse_extender_args,
)
from hamicommon.domain.ids import NodeName
from hamicommon.errors import InvalidRequest
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
        pytest.param(b"[]", "a JSON object is wanted", id="no-object"),
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

    assert parse_bind_args(body) == BindArgs(pod_name="p", pod_namespace="d", pod_uid="u", node="n")


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
