"""The scheduler's HTTPS with mutual TLS: files that change are taken over, nothing is restarted."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hami_scheduler.api.extender_clients import ExtenderClients
from hami_scheduler.bootstrap.server import serving_certificate
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.settings import Settings
from hamicommon.errors import InvalidRequest
from hamicommon.process.http_server import serving
from hamicommon.process.serving_certificate import ServingCertificate
from hamicommon.process.shutdown import end
from hamicommon.settings import NatsSettings, PostgresSettings, RedisSettings
from hamicommon.tls import new_key
from hamilocal.servers.certificates import Authority
from pydantic import SecretStr
from starlette.types import ASGIApp

pytestmark = pytest.mark.integration

DEADLINE_S = 60.0
LONG, SHORT = timedelta(days=1), timedelta(seconds=10)


def write_leaf(folder: Path, name: str, authority: Authority, life: timedelta) -> int:
    """A pair of this authority, for servers and clients alike; its serial number."""
    key, now = new_key(), datetime.now(UTC)
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + life)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / f"{name}.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
    (folder / f"{name}.key").write_bytes(pem)
    return certificate.serial_number


def trust(folder: Path, name: str, *authorities: Authority) -> None:
    pems = (each.certificate.public_bytes(Encoding.PEM) for each in authorities)
    (folder / f"{name}.crt").write_bytes(b"".join(pems))


def settings(folder: Path) -> Settings:
    return Settings(
        tls_cert_file=folder / "tls.crt",
        tls_key_file=folder / "tls.key",
        tls_client_ca_file=folder / "ca.crt",
        grant_key_file=folder / "unused",
        postgres=PostgresSettings(dsn=SecretStr("postgresql://unused")),
        redis=RedisSettings(url=SecretStr("redis://unused")),
        nats=NatsSettings(url="nats://unused"),
    )


class Served:
    """The scheduler's own server around an application that answers 200."""

    def __init__(self, folder: Path, *, clients: tuple[str, ...] = ()) -> None:
        self._app: ASGIApp = ExtenderClients(answer, clients) if clients else answer
        self.instruments = SchedulerInstruments()
        found = serving_certificate(settings(folder), self.instruments)
        assert found is not None
        self.certificate: ServingCertificate = found
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Served:
        context = self.certificate.context
        self.port = await self._stack.enter_async_context(
            serving(self._app, "127.0.0.1:0", ssl_context=context)
        )
        watching = asyncio.create_task(self.certificate.watch())
        self._stack.push_async_callback(end, [watching])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def serial(self, folder: Path, client: str) -> int:
        """Of the certificate that it serves to this client. Raises: OSError when it refuses."""
        context = ssl.create_default_context(cafile=str(folder / "trusted.crt"))
        context.load_cert_chain(folder / f"{client}.crt", folder / f"{client}.key")
        async with asyncio.timeout(DEADLINE_S):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", self.port, ssl=context, server_hostname="localhost"
            )
            served = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            # With TLS 1.3 a refused client learns it here.
            answer = await reader.read()
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        if not answer.startswith(b"HTTP/1.1 200"):
            raise ConnectionError("closed without an answer")
        return x509.load_der_x509_certificate(served).serial_number

    async def statuses(self, folder: Path, client: str, *paths: str) -> list[int]:
        """Answers to this client's POSTs on one connection."""
        context = ssl.create_default_context(cafile=str(folder / "trusted.crt"))
        context.load_cert_chain(folder / f"{client}.crt", folder / f"{client}.key")
        url = f"https://localhost:{self.port}"
        async with httpx.AsyncClient(base_url=url, verify=context, timeout=DEADLINE_S) as http:
            return [(await http.post(path, json={})).status_code for path in paths]


async def answer(_scope: object, _receive: object, send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority.new("one")
    trust(tmp_path, "ca", made)
    trust(tmp_path, "trusted", made)
    write_leaf(tmp_path, "client", made, LONG)
    return made


async def until(served: Served, folder: Path, client: str, serial: int | None) -> None:
    """Waits until it serves that certificate to the client; None: until it refuses the client."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                found: int | None = await served.serial(folder, client)
            except OSError:
                found = None
            if found == serial:
                return


async def test_a_certificate_is_renewed_before_it_ends_and_nothing_stops(
    tmp_path: Path, authority: Authority
) -> None:
    write_leaf(tmp_path, "tls", authority, SHORT)
    async with Served(tmp_path) as served:
        first_ends = served.certificate.not_after
        gauge = "hami_certificate_expiry_timestamp_seconds"
        of = {"service": "hami-scheduler", "certificate": "serving"}
        assert served.instruments.registry.get_sample_value(gauge, of) == first_ends.timestamp()

        await until(served, tmp_path, "client", write_leaf(tmp_path, "tls", authority, LONG))

        async with asyncio.timeout(DEADLINE_S):
            while datetime.now(UTC) <= first_ends:
                await served.serial(tmp_path, "client")
        await served.serial(tmp_path, "client")
        shown = served.instruments.registry.get_sample_value(gauge, of)
        assert shown == served.certificate.not_after.timestamp() > first_ends.timestamp()
        reloads = "hami_scheduler_certificate_reloads_total"
        assert served.instruments.registry.get_sample_value(reloads, {"result": "loaded"}) >= 1


async def test_a_client_of_another_authority_is_refused_and_a_new_authority_is_taken_over(
    tmp_path: Path, authority: Authority
) -> None:
    write_leaf(tmp_path, "tls", authority, LONG)
    other = Authority.new("two")
    write_leaf(tmp_path, "other", other, LONG)
    async with Served(tmp_path) as served:
        with pytest.raises(OSError):
            await served.serial(tmp_path, "other")
        own = await served.serial(tmp_path, "client")

        trust(tmp_path, "ca", authority, other)
        await until(served, tmp_path, "other", own)
        assert await served.serial(tmp_path, "client") == own

        trust(tmp_path, "ca", other)
        await until(served, tmp_path, "client", None)
        assert await served.serial(tmp_path, "other") == own


def test_files_that_are_no_certificates_are_one_sentence_each(
    tmp_path: Path, authority: Authority
) -> None:
    write_leaf(tmp_path, "tls", authority, LONG)
    (tmp_path / "ca.crt").write_text("nothing")
    with pytest.raises(InvalidRequest, match="holds no authority for clients"):
        Served(tmp_path)
    (tmp_path / "ca.crt").unlink()
    with pytest.raises(InvalidRequest, match="not readable"):
        Served(tmp_path)


async def test_a_certificate_of_the_authority_that_is_not_kube_schedulers_can_not_bind(
    tmp_path: Path, authority: Authority
) -> None:
    write_leaf(tmp_path, "tls", authority, LONG)
    for name in ("kube-scheduler", "scraper"):
        write_leaf(tmp_path, name, authority, LONG)
    verbs = ("/bind", "/filter", "/prioritize", "/metrics")

    async with Served(tmp_path, clients=("kube-scheduler",)) as served:
        assert await served.statuses(tmp_path, "kube-scheduler", *verbs) == [200] * 4
        assert await served.statuses(tmp_path, "scraper", *verbs) == [403] * 4
        # The server's own certificate is signed by the same authority.
        assert await served.statuses(tmp_path, "tls", "/bind") == [403]
