"""The agent's own metrics, as Prometheus text."""

from datetime import UTC, datetime
from functools import partial

from hami_node_agent.metrics.collectors import registry_of
from hami_node_agent.metrics.health import authority_families

END = datetime(2027, 1, 1, tzinfo=UTC)
NAME = "hami_certificate_expiry_timestamp_seconds"
AGENT = {"service": "hami-node-agent"}


def test_an_authoritys_end_appears_once_it_is_known() -> None:
    bus: list[datetime] = []
    registry = registry_of(
        partial(
            authority_families,
            {"kubernetes": lambda: END, "nats": lambda: bus[0] if bus else None},
        )
    )

    assert (
        registry.get_sample_value(NAME, {**AGENT, "certificate": "kubernetes"}) == END.timestamp()
    )
    assert registry.get_sample_value(NAME, {**AGENT, "certificate": "nats"}) is None
    bus.append(END)
    assert registry.get_sample_value(NAME, {**AGENT, "certificate": "nats"}) == END.timestamp()
