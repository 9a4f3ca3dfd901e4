"""Metrics of the ledger and of its servers' certificates, as Prometheus scrapes them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from cryptography import x509
from hami_metrics.adapters.server_certificates import nats_certificate, postgres_certificate
from hami_metrics.bootstrap import open_app
from hami_metrics.instruments import MetricsInstruments
from hami_metrics.settings import Settings
from hamicommon.errors import Unavailable
from hamicommon.settings import NatsSettings, PostgresSettings
from hamilocal.servers.certificates import Authority, write_certificate
from hamilocal.servers.data import nats as nats_server
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr

from tests import processes
from tests.integration.metrics.filled_ledger import fill
from tests.integration.metrics.service import bus, running, sql, until
from tests.tls_front import Front, tls_front
from tests.waiting import eventually


async def test_the_page_shows_the_ledger_and_is_empty_of_it_when_stale(
    postgres_dsn: str, nats_url: str
) -> None:
    async with bus(nats_url), sql(postgres_dsn) as db:
        await fill(db)
        async with running(postgres_dsn, nats_url) as (_, http):

            async def ready() -> bool:
                return (await http.get("/readyz")).status_code == 200

            await until("ready", ready)
            page = (await http.get("/metrics")).text

    labels = 'device_index="0",device_type="A100",device_uuid="GPU-1",node="n1",zone="vGPU"'
    lines = [line for line in page.splitlines() if not line.startswith("#")]
    assert (value_of(lines, "hami_gpu_shared_count", labels)) == 2
    assert 'hami_allocations{state="bound"} 1.0' in lines
    assert 'hami_allocations_by_origin{origin="scheduled"} 1.0' in lines
    assert 'hami_allocations_by_origin{origin="claim"} 2.0' in lines
    assert "hami_held_claims 1.0" in lines
    assert "hami_claim_holders 2.0" in lines
    assert 'hami_decisions_last_5m{outcome="refused"} 3.0' in lines
    waiting = [line for line in lines if line.startswith("hami_pending_pods{")]
    assert sum(float(line.rpartition(" ")[2]) for line in waiting) == 1
    assert [line for line in waiting if 'reason="CardInsufficientMemory"' in line and "1.0" in line]
    slices = [line for line in lines if line.startswith("hami_vgpu_memory_allocated_bytes")]
    # init asked for 30 MiB, two app containers for 10 each: the card holds 30.
    assert [float(line.rpartition(" ")[2]) for line in slices] == [30 * 1024 * 1024]
    made = [line for line in lines if line.startswith("hami_node_gpu_mig_instance_info{")]
    # Two containers share it, and reserved instances are not listed.
    assert len(made) == 1
    assert sorted(made[0].partition("{")[2].rpartition("}")[0].split(",")) == [
        'compute_instance_id="0"',
        'device_index="0"',
        'device_uuid="GPU-1"',
        'gpu_instance_id="7"',
        'mig_uuid="MIG-1"',
        'node="n1"',
        'placement_size="2"',
        'placement_start="4"',
        'profile="2g.20gb"',
        'zone="vGPU"',
    ]


def value_of(lines: list[str], name: str, labels: str) -> float | None:
    """The value of the sample with these labels, whatever their order."""
    for line in lines:
        if line.startswith(f"{name}{{"):
            inside, _, value = line[len(name) + 1 :].rpartition("} ")
            if sorted(inside.split(",")) == sorted(labels.split(",")):
                return float(value)
    return None


async def test_cards_whose_ids_are_unique_on_their_node_only_keep_their_ids(
    postgres_dsn: str, nats_url: str
) -> None:
    async with bus(nats_url), sql(postgres_dsn) as db:
        for node in ("a", "b"):
            await db.execute(
                "INSERT INTO nodes (name, source) VALUES ($1, 'annotation')", f"dcu-{node}"
            )
            await db.execute(
                "INSERT INTO devices (uuid, node, vendor, index, type, slots, memory_mib, "
                "core_percent, used_slots, used_memory_mib, ceiling_slots, ceiling_memory_mib, "
                "ceiling_core_percent, healthy) VALUES ('DCU-0@dcu-' || $1, 'dcu-' || $1, 'DCU', "
                "0, 'DCU-Z100', 4, 1000, 100, 1, 30, 4, 1000, 100, true)",
                node,
            )
            number = f"00000000-0000-4000-8000-00000000000{node}"
            await db.execute(
                "INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state) "
                "VALUES ($1, $2, 'ns', $2, 1, 'dcu-' || $2, 'bound')",
                number,
                node,
            )
            await db.execute(
                "INSERT INTO allocation_devices (allocation_id, container_index, position, "
                "container_name, role, device_uuid, vendor, memory_mib, core_percent) "
                "VALUES ($1, 0, 0, 'c', 'app', 'DCU-0@dcu-' || $2::text, 'DCU', 30, 0)",
                number,
                node,
            )
        async with running(postgres_dsn, nats_url) as (_, http):

            async def ready() -> bool:
                return (await http.get("/readyz")).status_code == 200

            await until("ready", ready)
            page = (await http.get("/metrics")).text

    lines = [line for line in page.splitlines() if not line.startswith("#")]
    for node in ("a", "b"):
        labels = f'device_index="0",device_type="DCU-Z100",device_uuid="DCU-0",node="dcu-{node}"'
        assert value_of(lines, "hami_gpu_shared_count", f'{labels},zone="vGPU"') == 1
        [held] = [
            line
            for line in lines
            if line.startswith("hami_vgpu_memory_allocated_bytes") and f'node="dcu-{node}"' in line
        ]
        assert 'device_uuid="DCU-0"' in held
    assert "@" not in page


NAME = "hami_certificate_expiry_timestamp_seconds"


@pytest.fixture
def front(tmp_path: Path, postgres_dsn: str) -> Iterator[Front]:
    folder = tmp_path / "postgres"
    folder.mkdir()
    with tls_front(folder, postgres_dsn) as front:
        yield front


@contextmanager
def encrypted_nats(folder: Path) -> Iterator[str]:
    """The URL of a server with a certificate; it and its authority lie in the folder."""
    plan = nats_server.prepare(folder)
    authority = Authority.new("bus authority")
    write_certificate(folder / "ca.crt", authority.certificate)
    certificate, key = folder / "tls.crt", folder / "tls.key"
    authority.make_serving("nats", certificate_file=certificate, key_file=key)
    with (folder / "nats.conf").open("a") as config:
        config.write(f'\ntls {{ cert_file: "{certificate}", key_file: "{key}" }}\n')
    with processes.running(plan, die_with_parent=True):
        yield f"tls://localhost:{plan.port}"


def over_tls(front: Front, dsn: str) -> str:
    parts = urlsplit(dsn)
    tls = f"?sslmode=verify-full&sslrootcert={front.ca_file}"
    return f"postgresql://{parts.username}:p%40ss@localhost:{front.port}{parts.path}{tls}"


def postgres(dsn: str, timeout_s: float = 5.0) -> PostgresSettings:
    return PostgresSettings(dsn=SecretStr(dsn), connect_timeout_s=timeout_s)


def end_of(file: Path) -> float:
    return x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc.timestamp()


def expiries(text: str) -> dict[str, float]:
    return {
        sample.labels["certificate"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == NAME
    }


async def test_the_service_shows_when_the_certificates_of_its_servers_expire(
    front: Front, postgres_dsn: str, tmp_path: Path
) -> None:
    bus = tmp_path / "nats"
    with encrypted_nats(bus) as url:
        settings = Settings(
            http_bind="127.0.0.1:0",
            postgres=postgres(over_tls(front, postgres_dsn)),
            nats=NatsSettings(url=url, tls_ca_file=bus / "ca.crt"),
        )
        wanted = {
            "postgres": end_of(tmp_path / "postgres" / "tls.pem"),
            "nats": end_of(bus / "tls.crt"),
        }
        async with (
            open_app(settings) as app,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{app.port}") as http,
        ):

            async def is_shown() -> bool:
                return expiries((await http.get("/metrics")).text) == wanted

            await eventually(is_shown, "both certificates")


async def test_a_certificate_that_has_expired_is_still_read(
    tmp_path: Path, postgres_dsn: str
) -> None:
    with tls_front(tmp_path, postgres_dsn, valid_s=-3600.0) as front:
        found = await postgres_certificate(postgres(over_tls(front, postgres_dsn))).not_after()

    assert found is not None
    assert found.timestamp() == end_of(tmp_path / "tls.pem")


async def test_of_several_addresses_the_first_end_counts(
    tmp_path: Path, front: Front, postgres_dsn: str
) -> None:
    with tls_front(tmp_path, postgres_dsn, valid_s=60.0) as ends_sooner:
        dsn = over_tls(front, postgres_dsn).replace(
            f":{front.port}/", f":{front.port},localhost:{ends_sooner.port}/"
        )
        found = await postgres_certificate(postgres(dsn)).not_after()

    assert found is not None
    assert found.timestamp() == end_of(tmp_path / "tls.pem")


async def test_servers_without_tls_show_no_expiry(postgres_dsn: str, nats_url: str) -> None:
    instruments = MetricsInstruments()
    for each in (
        postgres_certificate(postgres(postgres_dsn)),
        nats_certificate(NatsSettings(url=nats_url)),
        postgres_certificate(postgres("postgresql:///hami?host=/var/run/postgresql")),
    ):
        assert await each.not_after() is None
        instruments.show_expiry(each.server, None)

    [family] = instruments.certificates.collect()
    assert list(family.samples) == []


@asynccontextmanager
async def answering(greeting: bytes) -> AsyncIterator[int]:
    """The port of a server that sends one line and then nothing."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(greeting)
            await reader.read()
        except ConnectionError:
            pass  # the client hung up, as it should
        finally:
            writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    ("greeting", "why"),
    [
        (b"", "no answer in 0.5 s"),
        (b"HTTP/1.1 400 Bad Request\r\n", "is not NATS"),
        (b"INFO [1]\r\n", "is not NATS"),
        (b'INFO {"tls_required": true}\r\nnonsense nonsense', "(?i)ssl"),
        (b"x" * 100_000, "is not NATS"),
    ],
    ids=["silent", "a web server", "a list", "no handshake", "endless line"],
)
async def test_what_is_no_server_of_ours_is_named_in_one_sentence(
    greeting: bytes, why: str
) -> None:
    async with answering(greeting) as port:
        settings = NatsSettings(url=f"nats://127.0.0.1:{port}", connect_timeout_s=0.5)
        with pytest.raises(Unavailable, match="the certificate of nats can't be read: ") as caught:
            await nats_certificate(settings).not_after()

    assert why.startswith("(?i)") or why in str(caught.value)


@pytest.mark.parametrize("place", ["127.0.0.1:1", "localhost:notaport"])
async def test_a_server_that_is_away_is_unavailable_without_its_password(place: str) -> None:
    settings = postgres(f"postgresql://user:secret-text@{place}/hami")
    with pytest.raises(Unavailable) as caught:
        await postgres_certificate(settings).not_after()

    assert "secret-text" not in str(caught.value)
