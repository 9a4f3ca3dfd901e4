"""The scheduler's metrics page shows decisions and waiting pods."""

from __future__ import annotations

from typing import Any

import pytest
from hami_scheduler.extender import filter as filtering
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.integration.scheduler.world import Replica, World
from tests.waiting import eventually

pytestmark = pytest.mark.integration

Json = dict[str, Any]
OPENMETRICS = {"Accept": "application/openmetrics-text;version=1.0.0"}
TOTAL = {"phase": "total"}


async def samples(replica: Replica) -> list[Sample]:
    """Return the samples of the page in OpenMetrics."""
    page = await replica.http.get("/metrics", headers=OPENMETRICS)
    assert page.headers["content-type"].startswith("application/openmetrics-text")
    return [s for family in text_string_to_metric_families(page.text) for s in family.samples]


def value(found: list[Sample], name: str, **labels: str) -> float:
    return sum(s.value for s in found if s.name == name and labels.items() <= s.labels.items())


async def trace_of(world: World, pod: Json) -> str:
    """Return the trace of the pod's decision, once it is written."""
    found: list[str] = []

    async def written() -> bool:
        query = "SELECT trace_id FROM decisions WHERE pod_uid = $1"
        found[:] = [
            r["trace_id"] for r in await world.database.fetch(query, pod["metadata"]["uid"])
        ]
        return bool(found)

    await eventually(written, "the decision to be written")
    return found[0]


async def test_a_refusals_exemplar_opens_the_trace_of_its_decision(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filtering, "tracer", TracerProvider().get_tracer("test"))
    replica = await world.replica()
    await world.add_node("n1")
    pod = await world.pod("large", memory_mib=10_000_000)

    await replica.filter(pod, "n1")

    found = await samples(replica)
    assert value(found, "hami_scheduler_decisions_total", outcome="refused") == 1
    reason = "CardInsufficientMemory"
    assert value(found, "hami_scheduler_decisions_total", outcome="refused", reason=reason) == 1
    duration = "hami_scheduler_decision_duration_seconds"
    for phase in ("parse", "place", "answer", "total"):
        assert value(found, f"{duration}_count", phase=phase) == 1, phase
    [exemplar] = [s.exemplar for s in found if s.exemplar]
    assert exemplar.labels["trace_id"] == await trace_of(world, pod)


async def test_placed_pods_and_pods_without_cards_are_counted_apart(world: World) -> None:
    replica = await world.replica()
    await world.add_node("n1")
    before = await samples(replica)
    await replica.filter(await world.pod("slice"), "n1")

    found = await samples(replica)

    name = "hami_scheduler_decisions_total"
    assert value(found, name, outcome="placed") == 1
    # Known outcomes are there from the start on, so that rates begin at 0.
    assert [s.labels["outcome"] for s in before if s.name == name] == [
        *("placed", "error", "unmanaged")
    ]


async def test_what_waits_is_shown_with_its_reason_until_it_is_gone(world: World) -> None:
    replica = await world.replica()
    await world.add_node("n1")
    pod = await world.pod("large", memory_mib=10_000_000)
    await replica.filter(pod, "n1")
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    await world.set_status(pod, conditions=[refused])

    async def waits() -> list[dict[str, str]]:
        name = "hami_pending_oldest_timestamp_seconds"
        return [s.labels for s in await samples(replica) if s.name == name]

    async def shown() -> bool:
        return await waits() == [{"reason": "CardInsufficientMemory", "fits": "false"}]

    async def gone() -> bool:
        return await waits() == []

    await eventually(shown, "the pod to wait, not to fit, with its reason")
    await world.delete(pod)
    await eventually(gone, "the pod to wait no longer")
