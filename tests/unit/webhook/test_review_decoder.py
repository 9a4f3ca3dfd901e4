"""Read quickly or whole, a review is the same."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hami_webhook.review import AdmissionReview, MalformedReview, read_review
from hami_webhook.review_decoder import read_quickly
from hamicommon.admission.cache import OfObject
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.webhook.test_any_review import as_stored, pods, review_of, reviews


def told(review: AdmissionReview) -> tuple[object, ...]:
    return (*review._replace(pod=None)[:-1], review.pod.read())  # type: ignore[arg-type]


def outcome(read: Any, body: bytes) -> object:
    try:
        return told(read(body))
    except MalformedReview as exc:
        return str(exc), exc.uid, exc.api_version


@settings(max_examples=300, deadline=None)
@given(reviews())
def test_a_review_read_quickly_is_the_one_read_whole(body: bytes) -> None:
    assert outcome(read_quickly, body) == outcome(read_review, body)


@settings(max_examples=100, deadline=None)
@given(pods)
def test_what_an_api_server_has_filled_in_is_read_quickly(pod: dict[str, Any]) -> None:
    stored, taken = as_stored(pod)
    if taken and stored["spec"].get("initContainers", ()) is not None:
        read = read_quickly(orjson.dumps(review_of(stored)))
        assert not isinstance(read.pod, OfObject)


@settings(max_examples=200, deadline=None)
@given(pods, pods, st.booleans())
def test_pods_with_one_key_have_the_same_relevant_part(
    one: dict[str, Any], other: dict[str, Any], spaced: bool
) -> None:
    bodies = json.dumps(review_of(one)), json.dumps(review_of(other), indent=spaced or None)
    first, second = (read_quickly(body.encode()).pod for body in bodies)
    if first.key() == second.key():
        assert first.read() == second.read()


MAIN = {"name": "main"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"containers": [MAIN, MAIN]}, {"containers": [MAIN], "initContainers": [MAIN]}),
        ({"containers": [MAIN]}, {"containers": [MAIN], "initContainers": []}),
        ({"containers": [], "initContainers": [MAIN]}, {"containers": [MAIN]}),
        ({"containers": [MAIN], "nodeName": "a"}, {"containers": [MAIN], "schedulerName": "a"}),
        ({"containers": [{"env": []}]}, {"containers": [{"resources": []}]}),
        ({"containers": [MAIN], "nodeName": None}, {"containers": [MAIN], "nodeName": "a"}),
    ],
)
def test_the_same_values_in_other_places_are_another_key(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    first, second = (
        read_quickly(orjson.dumps(review_of({"metadata": {}, "spec": spec}))).pod
        for spec in (one, other)
    )
    assert not isinstance(first, OfObject)
    assert first.key() != second.key()


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (b'"ns"', b'"ns", "namespace": "second"'),  # a name that comes twice: the last one counts
        (b'"v"', b'"\xff"'),
        (b'"v"', b'"\\ud800"'),
        (b'"v"', b"1e999"),
        (b'"v"', b"[" * 5000 + b"]" * 5000),
        (b'"hami.io/traceparent"', b'"hami.io\\/tracep\\u0061rent"'),
    ],
    ids=["twice", "no UTF-8", "half a character", "a huge number", "deep", "escaped"],
)
def test_odd_json_is_read_as_ever(found: bytes, wanted: bytes) -> None:
    metadata = {"annotations": {"hami.io/traceparent": "v"}}
    body = orjson.dumps(review_of({"metadata": metadata, "spec": {"containers": [MAIN]}}))
    assert found in body
    odd = body.replace(found, wanted, 1)

    assert outcome(read_quickly, odd) == outcome(read_review, odd)


def test_a_part_that_is_no_json_is_told_when_it_is_read() -> None:
    container = {"name": "main", "env": [{"name": "A", "value": "half"}]}
    body = orjson.dumps(review_of({"metadata": {}, "spec": {"containers": [container]}}))
    broken = read_quickly(body.replace(b"half", b"\xc3("))

    with pytest.raises(MalformedReview, match="no JSON"):
        broken.pod.read()
