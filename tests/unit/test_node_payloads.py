"""Every reader compares an agent's message with the subject that it came on."""

from __future__ import annotations

import contextlib
import json
import re
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hami_metrics.instruments import MetricsInstruments
from hami_metrics.service import UsageHistory
from hami_scheduler.adoption.resource_claims import ClaimGrants
from hami_scheduler.bus.inventories import InventoryReports
from hami_scheduler.bus.ledger_stats import GrantSnapshots
from hami_scheduler.bus.reports import GrantReports
from hami_scheduler.enforcement.checks import LimitChecks
from hami_webhook.cluster_feed import ClusterFollower
from hami_webhook.room import RoomThread
from hamicommon import events
from hamicommon.bus.client import Message
from hamicommon.bus.permissions import agent_permissions
from hamicommon.bus.reader import read_of_node
from hamicommon.errors import InvalidRequest

OURS, OTHER = "node-2", "node-0"
MAX_PAYLOAD_BYTES = 1024 * 1024
"""Largest payloads of the bus server (`k8s/base/nats-config.yaml`), and of one with defaults."""
NOW = datetime(2026, 11, 29, tzinfo=UTC)
SERVICES = Path(__file__).parents[2] / "services"

_AT = NOW.isoformat()
_POD = {"pod_uid": "u", "namespace": "ns", "pod_name": "p"}
_NUMBERED = {"agent_id": "agent", "sequence": 1}
BODIES: dict[Callable[[str], str], dict[str, Any]] = {
    events.inventory_subject: {**_NUMBERED, "observed_at": _AT, "devices": []},
    events.reports_subject: {
        "kind": "allocated",
        "report_id": "r",
        "allocation_id": "1",
        "pod_uid": "u",
        "token": 1,
        "at": _AT,
    },
    events.usage_subject: {**_NUMBERED, "sampled_at": _AT, "devices": [], "containers": []},
    events.limits_subject: {**_NUMBERED, "checked_at": _AT},
    events.snapshot_subject: {},
    events.claims_subject: _POD,
}
KINDS = {
    events.inventory_subject: events.Inventory,
    events.reports_subject: events.REPORT,
    events.usage_subject: events.Usage,
    events.limits_subject: events.LimitCheck,
    events.snapshot_subject: events.GrantSnapshotRequest,
    events.claims_subject: events.ClaimsRequest,
}


def body(subject_of: Callable[[str], str], node: str) -> bytes:
    return json.dumps({**BODIES[subject_of], "node": node}).encode()


def message(subject: str, data: bytes) -> Message:
    return Message(subject=subject, data=data, stream_sequence=1, deliveries=1, received_at=NOW)


Read = Callable[[str, bytes], Awaitable[object]]
"""A reader: of a subject and a body. Raises: InvalidRequest."""


def one_of_many(handle_all: Callable[[Sequence[Message]], Awaitable[Sequence[object]]]) -> Read:
    async def read(subject: str, data: bytes) -> None:
        (answer,) = await handle_all([message(subject, data)])
        assert isinstance(answer, Exception), "it was believed"
        raise answer

    return read


def readers() -> dict[Callable[[str], str], list[Read]]:
    """The readers of each subject; none of them gets as far as its backends."""
    any_of = dict.fromkeys
    reports = GrantReports(
        **any_of(
            (
                *("store", "transitions", "drift", "doubt_mirror", "pods", "ender", "announcer"),
                *("instruments", "known_pods"),
            ),
            Mock(),
        )
    )
    inventories = InventoryReports(
        **any_of(
            ("store", "view", "refused", "drift", "instruments", "on_report", "on_written"), Mock()
        )
    )
    checks = LimitChecks(
        **any_of(
            (
                *("history", "pod_named", "announcer", "instruments", "log_limit", "ender"),
                "policy",
            ),
            Mock(),
        )
    )
    claims = ClaimGrants(
        **any_of(
            (
                *("store", "pods", "claims", "request_of", "view", "vendors", "instruments"),
                *("label_keys", "binding_s"),
            ),
            Mock(),
        )
    )
    usage = UsageHistory(Mock(), MetricsInstruments(), lambda: NOW, grace_s=1.0)
    follower = ClusterFollower(Mock(rules={}), lambda: NOW, RoomThread())

    async def check(subject: str, data: bytes) -> None:
        await checks.handle(message(subject, data))

    async def follow(subject: str, data: bytes) -> None:
        await follower.take_inventory(message(subject, data))
        assert not follower._sequences, "it was believed"
        raise InvalidRequest("passed over")

    return {
        events.inventory_subject: [one_of_many(inventories.handle_all), follow],
        events.reports_subject: [one_of_many(reports.handle_all)],
        events.usage_subject: [one_of_many(usage.ingest)],
        events.limits_subject: [check],
        events.snapshot_subject: [GrantSnapshots(Mock()).respond],
        events.claims_subject: [claims.respond],
    }


def node_subjects() -> list[str]:
    publish = agent_permissions(OURS).publish
    return [each for each in publish if re.match(r"hami\.", each)]


def test_every_subject_that_an_agent_may_publish_on_is_in_the_tables() -> None:
    assert sorted(node_subjects()) == sorted(subject_of(OURS) for subject_of in BODIES)
    assert BODIES.keys() == KINDS.keys() == readers().keys()


@pytest.mark.parametrize("subject_of", BODIES, ids=lambda each: each.__name__)
def test_the_sample_of_a_node_is_read_on_its_own_subject(subject_of: Callable[[str], str]) -> None:
    payload = read_of_node(KINDS[subject_of], subject_of(OURS), body(subject_of, OURS), "it")

    assert payload.node == OURS


@pytest.mark.parametrize("subject_of", BODIES, ids=lambda each: each.__name__)
async def test_no_reader_believes_what_a_node_sends_in_the_name_of_another(
    subject_of: Callable[[str], str],
) -> None:
    for read in readers()[subject_of]:
        with pytest.raises(InvalidRequest, match=rf"of node {OTHER} came on|passed over"):
            await read(subject_of(OURS), body(subject_of, OTHER))


def test_no_service_decodes_a_payload_past_the_reader() -> None:
    found = [
        str(file.relative_to(SERVICES))
        for service in ("scheduler", "metrics", "webhook")
        for file in (SERVICES / service / "src").rglob("*.py")
        if "validate_json(" in file.read_text()
    ]

    assert found == []


def fill_message(item: dict[str, Any]) -> list[dict[str, Any]]:
    """Repeat the item until it fills a message."""
    return [item] * (MAX_PAYLOAD_BYTES // len(json.dumps(item, separators=(",", ":")) + ","))


_CARD = {"uuid": "u", "index": 0, "vendor": "v", "type": "", "slots": 0, "memory_mib": 0}
_SLICE = {"pod_uid": "u", "namespace": "", "pod": "", "container": "", "vdevice_index": 0}
_FOUND = {"pod_uid": "u", "uuid": "u", "state": "unknown"}
_MADE = {"container": "", "device_index": 0, "uuid": "", "mig_uuid": ""}
LARGEST: list[tuple[Callable[[str], str], dict[str, Any]]] = [
    (events.inventory_subject, {"devices": fill_message({**_CARD, "core_percent": 0})}),
    (
        events.inventory_subject,
        {"devices": [], "pair_scores": {"a": {f"{n}": 0 for n in range(80_000)}}},
    ),
    (
        events.reports_subject,
        {"instances": fill_message({**_MADE, "gpu_instance_id": 0, "compute_instance_id": 0})},
    ),
    (events.usage_subject, {"devices": fill_message({"uuid": "", "index": 0, "type": ""})}),
    (events.usage_subject, {"containers": fill_message({**_SLICE, "uuid": ""})}),
    (events.usage_subject, {"unchanged": fill_message({"rounds": 1})}),
    (
        events.usage_subject,
        {
            "earlier_rounds": [_AT] * 60,
            "unchanged": [
                {
                    "rounds": 60,
                    "devices": fill_message({"uuid": "", "index": 0, "type": ""})[:25_000],
                }
            ],
        },
    ),
    (
        events.limits_subject,
        {"findings": fill_message({**_FOUND, "since": _AT})},
    ),
    (events.snapshot_subject, {"colour": "x" * 1_000_000}),
    (events.claims_subject, {"pod_name": "x" * 1_000_000}),
]


def rows_of(payload: Any) -> int:
    """Things that its reader looks up or writes."""
    if isinstance(payload, events.Usage):
        return payload.rows
    lists = ("instances", "findings", "containers", "partners")
    return sum(len(getattr(payload, name, ())) for name in lists)


@pytest.mark.parametrize(("subject_of", "fields"), LARGEST)
def test_the_largest_message_of_the_bus_is_read_in_bounded_memory_and_makes_bounded_rows(
    subject_of: Callable[[str], str], fields: dict[str, Any]
) -> None:
    data = json.dumps(
        {**BODIES[subject_of], "node": OURS, **fields}, separators=(",", ":")
    ).encode()
    assert len(data) > 0.6 * MAX_PAYLOAD_BYTES
    payload = None
    tracemalloc.start()
    try:
        with contextlib.suppress(InvalidRequest):
            payload = read_of_node(KINDS[subject_of], subject_of(OURS), data, "it")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert most < 64 * MAX_PAYLOAD_BYTES
    assert rows_of(payload) <= (events.USAGE_MAX_ROWS if "usage" in subject_of(OURS) else 1024)


def test_an_honest_nodes_longest_report_is_read() -> None:
    """16 cards of 10 slices after an outage of the bus, sampled every second."""
    cards = [
        events.DeviceSample(
            uuid=f"GPU-{n:032x}", index=n, type="NVIDIA H200", memory_used_bytes=1 << 40
        )
        for n in range(16)
    ]
    slices = [
        events.ContainerSample(
            pod_uid=f"{n:036x}",
            namespace="n" * 63,
            pod="p" * 100,
            container="c" * 63,
            vdevice_index=0,
            uuid=cards[n // 10].uuid,
            memory_used_bytes=1 << 40,
        )
        for n in range(160)
    ]
    usage = events.Usage(
        node=OURS,
        agent_id="a",
        sequence=1,
        sampled_at=NOW,
        devices=tuple(cards),
        containers=tuple(slices),
        unchanged=(events.Unchanged(rounds=60, devices=tuple(cards), containers=tuple(slices)),),
        earlier_rounds=tuple(NOW for _ in range(60)),
    )
    data = usage.model_dump_json().encode()

    assert len(data) < MAX_PAYLOAD_BYTES
    subject = events.usage_subject(OURS)
    assert read_of_node(events.Usage, subject, data, "it").rows == 176 * 61
