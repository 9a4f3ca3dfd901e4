"""Traces cross carriers, and links name them."""

from hamicommon import telemetry
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_trace_crosses_a_carrier() -> None:
    context = telemetry.extract({"traceparent": PARENT})
    provider = TracerProvider()

    with provider.get_tracer("t").start_as_current_span("s", context=context):
        assert telemetry.traceparent().split("-")[1] == PARENT.split("-")[1]
        assert telemetry.inject({"a": "b"}).keys() == {"a", "traceparent"}
    provider.shutdown()


def test_a_link_names_the_other_trace_and_garbage_makes_none() -> None:
    [link] = telemetry.link_to(PARENT)

    assert f"{link.context.trace_id:032x}" == PARENT.split("-")[1]
    assert telemetry.link_to("garbage") == []
    assert trace.get_current_span().get_span_context().is_valid is False


def test_probes_are_not_traced() -> None:
    assert telemetry.is_probe({"path": "/readyz"})
    assert not telemetry.is_probe({"path": "/filter"})


def test_the_traceparent_is_what_w3c_propagation_would_inject() -> None:
    provider = TracerProvider()
    with provider.get_tracer("t").start_as_current_span("s"):
        assert telemetry.traceparent() == telemetry.inject()["traceparent"]
    provider.shutdown()

    assert telemetry.traceparent() == ""
