"""Unreadable payloads are refused in one sentence, unknown versions above all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hamicommon.bus.reader import read, read_any, read_of_node
from hamicommon.errors import InvalidRequest
from hamicommon.events import (
    GRANT_MESSAGE,
    ClaimsReply,
    GrantSnapshotRequest,
    GrantWithdrawn,
    Usage,
)
from pydantic import TypeAdapter

GRANT = {
    "version": 1,
    "allocation_id": "a",
    "pod_uid": "u",
    "namespace": "default",
    "pod_name": "p",
    "node": "n",
    "token": 1,
    "containers": [],
    "expires_at": "2026-01-01T00:00:00Z",
}


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def test_a_payload_with_more_than_we_know_is_read() -> None:
    answer = read(ClaimsReply, body(version=1, node="n", colour="red"), "answer")

    assert answer == ClaimsReply(node="n")


def test_a_nodes_payload_is_read_on_its_own_subject() -> None:
    data = body(version=1, node="a.example", colour="red")

    request = read_of_node(GrantSnapshotRequest, "hami.grants.snapshot.a_example", data, "request")

    assert request == GrantSnapshotRequest(node="a.example")


@pytest.mark.parametrize(
    ("subject", "node"),
    [
        ("hami.grants.snapshot.a", "b"),
        ("hami.grants.snapshot.a_example", "a_example"),
        ("hami.grants.snapshot.a", ""),
        ("hami.grants.snapshot.a", "a."),
        ("hami.grants.snapshot.a", "a\n"),
        ("hami.grants.snapshot.a", "a" * 254),
        ("hami.usage.v1.a", "a"),
    ],
)
def test_a_nodes_payload_is_read_on_no_other_subject(subject: str, node: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^request (of node \S+ came on|is malformed: node)"):
        read_of_node(GrantSnapshotRequest, subject, body(node=node), "request")


def test_a_nodes_payload_is_read_in_no_other_way() -> None:
    with pytest.raises(TypeError, match="read it by read_of_node"):
        read(GrantSnapshotRequest, body(node="a"), "request")
    with pytest.raises(TypeError, match="read it by read_of_node"):
        read_any(TypeAdapter(GrantSnapshotRequest), body(node="a"), "request")


def test_one_of_several_kinds_is_recognised_by_its_kind() -> None:
    sent = body(
        kind="withdrawn", allocation_id="a", pod_uid="u", node="n", token=1, reason="pod deleted"
    )

    assert isinstance(read_any(GRANT_MESSAGE, sent, "grant message"), GrantWithdrawn)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(
            body(kind="granted", version=7, grant=GRANT),
            r"^grant message: granted\.version is 7, and this release reads 1: .*update this one",
            id="envelope",
        ),
        pytest.param(
            body(kind="granted", version=1, grant={**GRANT, "version": 3}),
            r"^grant message: granted\.grant\.version is 3, and this release reads 1 or 2: ",
            id="inside",
        ),
        pytest.param(b"{", "^grant message is malformed: body: Invalid JSON", id="no-json"),
        pytest.param(body(kind="lent"), r"malformed: .*'granted', 'withdrawn'", id="kind"),
        pytest.param(
            body(kind="withdrawn"),
            r"withdrawn\.allocation_id: Field required; .* and 2 more$",
            id="many-mistakes",
        ),
    ],
)
def test_what_is_wrong_is_named(data: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        read_any(GRANT_MESSAGE, data, "grant message")


CARD = {"uuid": "GPU-1", "index": 0, "type": "A100"}
SLICE = {
    "pod_uid": "u",
    "namespace": "ns",
    "pod": "p",
    "container": "c",
    "vdevice_index": 0,
    "uuid": "GPU-1",
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"sequence": -1},
        {"sequence": 2**63 - 1},
        {"devices": [{**CARD, "memory_used_bytes": -1}]},
        {"devices": [{**CARD, "memory_used_bytes": 2**62}]},
        {"devices": [{**CARD, "memory_used_bytes": 2, "memory_total_bytes": 1}]},
        {"devices": [{**CARD, "gpu_percent": -1.0}]},
        {"devices": [{**CARD, "gpu_percent": 1e300}]},
        {"devices": [{**CARD, "power_watts": float("nan")}]},
        {"containers": [{**SLICE, "memory_used_bytes": 2**62}]},
        {"containers": [{**SLICE, "core_percent": -0.5}]},
        {"containers": [{**SLICE, "core_percent": float("inf")}]},
        {"containers": [{**SLICE, "processes": -1}]},
    ],
    ids=str,
)
def test_usage_that_no_card_has_is_refused(wrong: dict[str, Any]) -> None:
    usage = {
        "node": "n",
        "agent_id": "a",
        "sequence": 1,
        "sampled_at": "2026-01-01T00:00:00Z",
        "devices": [],
        "containers": [],
    }
    subject = "hami.usage.v1.n"
    assert read_of_node(Usage, subject, body(**usage), "usage").sequence == 1

    with pytest.raises(InvalidRequest, match="usage is malformed"):
        read_of_node(Usage, subject, body(**usage | wrong), "usage")
