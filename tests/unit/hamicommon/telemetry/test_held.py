"""Spans of a service that has bursts wait until there is time for them."""

from __future__ import annotations

import pytest
from hamicommon.telemetry.held import HeldSpans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

MOST = 4


class Held:
    """A provider whose spans pass through `spans`, and what came out of it."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.spans = HeldSpans(SimpleSpanProcessor(self.exporter), most=MOST)
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(self.spans)

    @property
    def passed_on(self) -> list[str]:
        return [span.name for span in self.exporter.get_finished_spans()]

    @property
    def tracer(self) -> Tracer:
        return self.provider.get_tracer("test")

    def end(self, *names: str) -> None:
        for name in names:
            self.tracer.start_span(name).end()


@pytest.fixture
def held() -> Held:
    return Held()


def test_a_service_without_bursts_passes_them_on_at_once(held: Held) -> None:
    held.end("a", "b")

    assert held.passed_on == ["a", "b"]


def test_held_ones_are_let_go_of_in_their_order_so_many_at_a_time(held: Held) -> None:
    held.spans.hold()
    held.end("a", "b", "c")
    assert held.passed_on == []

    assert held.spans.release(2)
    assert held.passed_on == ["a", "b"]
    assert not held.spans.release(2)
    assert held.passed_on == ["a", "b", "c"]


def test_more_than_can_wait_are_passed_on_and_none_is_lost(held: Held) -> None:
    held.spans.hold()
    names = [str(number) for number in range(MOST + 3)]
    held.end(*names)
    assert held.passed_on == names[MOST:]

    held.spans.release(MOST)
    assert sorted(held.passed_on) == names


def test_a_flush_and_the_end_pass_on_what_waits(held: Held) -> None:
    held.spans.hold()
    held.end("a")
    assert held.provider.force_flush()
    assert held.passed_on == ["a"]

    held.end("b")
    held.provider.shutdown()
    assert held.passed_on == ["a", "b"]
