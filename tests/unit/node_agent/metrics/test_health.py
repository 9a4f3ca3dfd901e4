"""What the agent shows of itself, as Prometheus text."""

from datetime import UTC, datetime

from hami_node_agent.metrics.collectors import registry_of
from hami_node_agent.metrics.health import AuthorityCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

END = datetime(2027, 1, 1, tzinfo=UTC)
NAME = "hami_node_agent_certificate_not_after_timestamp_seconds"


def lines_of(collector: Collector) -> list[str]:
    return generate_latest(registry_of(collector)).decode().splitlines()


def test_an_authoritys_end_appears_once_it_is_known() -> None:
    bus: list[datetime] = []
    collector = AuthorityCollector(
        {"kubernetes": lambda: END, "nats": lambda: bus[0] if bus else None}
    )
    kubernetes = f'{NAME}{{server="kubernetes"}} {END.timestamp():.9e}'
    nats = kubernetes.replace("kubernetes", "nats")

    assert [line for line in lines_of(collector) if line.startswith(NAME)] == [kubernetes]
    bus.append(END)
    assert [line for line in lines_of(collector) if line.startswith(NAME)] == [kubernetes, nats]
