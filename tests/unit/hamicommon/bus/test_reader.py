"""What can't be read is refused in one sentence, an unknown version above all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hamicommon.bus.reader import read, read_any
from hamicommon.errors import InvalidRequest
from hamicommon.events import GRANT_MESSAGE, GrantSnapshotRequest, GrantWithdrawn

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
    request = read(GrantSnapshotRequest, body(version=1, node="n", colour="red"), "request")

    assert request == GrantSnapshotRequest(node="n")


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
