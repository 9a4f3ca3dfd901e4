"""The span of a container's first kernel: from the region that its tenant could write."""

from __future__ import annotations

import pytest
from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.usage import sampler
from hami_node_agent.usage.monitor import Container, Owner
from hami_node_agent.usage.regions.accounting import Region, RegionProcess
from hami_node_agent.usage.sampler import FirstKernels
from hamicommon.domain.ids import AllocationId, PodUid
from hamicommon.domain.pod_ref import PodRef
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

NOW_MS = 1_800_000_000_000
BOOT_MS = NOW_MS - 3_600_000
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
GRANT = NodeGrant(
    allocation_id=AllocationId("a"),
    pod_uid=PodUid("pod-1"),
    namespace="default",
    pod_name="train",
    token=1,
    containers=(),
    traceparent=f"00-{TRACE}-00f067aa0ba902b7-01",
)


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


def looking(grant: NodeGrant | None = GRANT) -> FirstKernels:
    now = iter([NOW_MS - 10_000])
    return FirstKernels(
        lambda uid: grant if uid == "pod-1" else None,
        now_ms=lambda: next(now, NOW_MS),
        boot_ms=lambda: BOOT_MS,
    )


def container(at_ms: int, *started_ms: int, name: str = "pod-1_main") -> Container:
    ticks = [(at - BOOT_MS) // 10 for at in started_ms]
    processes = tuple(
        RegionProcess(pid=7, host_pid=0, started_ticks=each, held=()) for each in ticks
    )
    pod = PodRef(uid=PodUid("pod-1"), namespace="default", name="train")
    return Container(
        directory=name,
        owner=Owner(pod=pod, container="main"),
        region=Region(cards=(), processes=processes, first_kernel_epoch_ms=at_ms),
    )


def test_it_goes_from_the_programs_start_to_the_kernel_in_the_pods_trace(
    exported: InMemorySpanExporter,
) -> None:
    looking().look([container(NOW_MS, NOW_MS - 1900, NOW_MS - 300)])

    [span] = exported.get_finished_spans()
    assert span.name == sampler.SPAN
    assert span.parent is not None
    assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == (
        TRACE,
        "00f067aa0ba902b7",
    )
    assert (span.start_time, span.end_time) == ((NOW_MS - 1900) * 10**6, NOW_MS * 10**6)
    assert span.attributes == {
        "k8s.pod.uid": "pod-1",
        "k8s.namespace.name": "default",
        "k8s.pod.name": "train",
        "k8s.container.name": "main",
    }


def test_it_is_published_once_and_again_for_a_directory_that_came_back(
    exported: InMemorySpanExporter,
) -> None:
    kernels = looking()
    for containers in ([container(NOW_MS)], [container(NOW_MS)], [], [container(NOW_MS)]):
        kernels.look(containers)

    assert len(exported.get_finished_spans()) == 2


@pytest.mark.parametrize(
    "at_ms",
    [0, 1, NOW_MS - 60_000, NOW_MS + 60_000, 2**64 - 1],
    ids=["none yet", "long ago", "before this agent", "to come", "scribbled"],
)
def test_a_moment_outside_of_the_agents_life_is_left_out(
    exported: InMemorySpanExporter, at_ms: int
) -> None:
    looking().look([container(at_ms)])

    assert exported.get_finished_spans() == ()


@pytest.mark.parametrize("started_ms", [(), (NOW_MS + 5000,), (BOOT_MS + (2**64) * 10,)])
def test_without_a_usable_start_it_is_the_moment_alone(
    exported: InMemorySpanExporter, started_ms: tuple[int, ...]
) -> None:
    looking().look([container(NOW_MS, *started_ms)])

    [span] = exported.get_finished_spans()
    assert span.start_time == span.end_time == NOW_MS * 10**6


def test_a_container_without_a_grant_has_no_trace(exported: InMemorySpanExporter) -> None:
    looking(None).look([container(NOW_MS)])

    assert exported.get_finished_spans() == ()
