"""A pod that is seen twice keeps its stamp; anybody else's stamp is replaced."""

from __future__ import annotations

import base64
import json

import httpx
import jsonpatch
import pytest
from hami_webhook import trace_stamps
from hami_webhook.metrics import WebhookInstruments
from hami_webhook.trace_stamps import KEEP_S, Stamps
from hamicommon.k8s.types import Json
from opentelemetry.sdk.trace import TracerProvider

from tests.unit.webhook.test_routes import client, pod, review

STAMP = "hami.io/traceparent"


def test_a_stamp_is_ours_for_the_same_pod_and_for_a_while() -> None:
    given = Stamps()
    given.give("s", "ns/p", now_s=100.0)

    assert given.has("s", "ns/p", now_s=100.0 + KEEP_S - 1)
    assert not given.has("s", "ns/p", now_s=100.0 + KEEP_S)
    assert not given.has("s", "ns/other", now_s=100.0)
    assert not given.has("t", "ns/p", now_s=100.0)


def test_the_oldest_stamps_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_stamps, "MOST", 2)
    given = Stamps()
    for stamp in "abc":
        given.give(stamp, "ns/p", now_s=0.0)

    assert [given.has(stamp, "ns/p", now_s=0.0) for stamp in "abc"] == [False, True, True]


async def patched(http: httpx.AsyncClient, given: Json) -> tuple[Json, list[Json]]:
    response = (await http.post("/webhook", json=review(given))).json()["response"]
    steps = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    return jsonpatch.apply_patch(given, steps), steps


async def test_the_same_pod_twice_is_no_second_patch() -> None:
    provider = TracerProvider()
    async with client(WebhookInstruments(), tracer=provider.get_tracer("t")) as http:
        once, _ = await patched(http, pod(**{"nvidia.com/gpu": "1"}))
        assert (await patched(http, once))[1] == []

        # Another pod that brings the stamp along begins a trace of its own.
        copied = {**once, "metadata": {**once["metadata"], "name": "q"}}
        twin, steps = await patched(http, copied)
        assert [step["op"] for step in steps] == ["replace"]
        assert twin["metadata"]["annotations"][STAMP] != once["metadata"]["annotations"][STAMP]
    provider.shutdown()
