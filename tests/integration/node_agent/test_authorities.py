"""The expiry of the authorities that an agent verifies its servers with, on /metrics."""

from pathlib import Path

import pytest
from cryptography import x509
from hamilocal.system.layout import ensure_credentials
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.node_agent.conftest import ApiServer
from tests.integration.node_agent.machine import AgentProcess, Machine
from tests.waiting import eventually

pytestmark = [pytest.mark.integration, pytest.mark.native]

NAME = "hami_certificate_expiry_timestamp_seconds"


def expiries(text: str) -> dict[str, float]:
    return {
        sample.labels["certificate"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == NAME
    }


def end_of(authority: Path) -> float:
    certificate = x509.load_pem_x509_certificate(authority.read_bytes())
    return certificate.not_valid_after_utc.timestamp()


async def test_the_agent_shows_when_the_authorities_of_its_servers_expire(
    machine: Machine, api_server: ApiServer, folder: Path
) -> None:
    # Of another authority than the API server's. Nobody listens there: it is loaded all the same.
    bus_authority = ensure_credentials(folder / "bus", serving=("nats",)).ca
    machine.nats_url = "tls://127.0.0.1:9"
    machine.extra["HAMI_NATS_TLS_CA_FILE"] = str(bus_authority)
    agent = AgentProcess(machine)
    agent.start()
    wanted = {"nats": end_of(bus_authority), "kubernetes": end_of(api_server.authority)}
    try:
        await eventually(lambda: expiries(agent.get("/metrics")[1]) == wanted)
    finally:
        agent.close()
