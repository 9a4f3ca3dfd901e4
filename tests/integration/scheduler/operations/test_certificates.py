"""The HTTPS of the operators' port: files that change are taken over, nothing is restarted."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
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

DEADLINE_S = 60.0
LONG, SHORT = timedelta(days=1), timedelta(seconds=10)


def write_leaf(folder: Path, name: str, authority: Authority, life: timedelta) -> int:
    """A pair of this authority for a server; its serial number."""
    key, now = new_key(), datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + life)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / f"{name}.crt").write_bytes(certificate.public_bytes(Encoding.PEM))
    (folder / f"{name}.key").write_bytes(pem)
    return certificate.serial_number


def settings(folder: Path) -> Settings:
    return Settings(
        tls_cert_file=folder / "tls.crt",
        tls_key_file=folder / "tls.key",
        operator_bind="127.0.0.1:0",
        grant_key_file=folder / "unused",
        postgres=PostgresSettings(dsn=SecretStr("postgresql://unused")),
        redis=RedisSettings(url=SecretStr("redis://unused")),
        nats=NatsSettings(url="nats://unused"),
    )


class Served:
    """The scheduler's own server around an application that answers 200."""

    def __init__(self, folder: Path) -> None:
        self.instruments = SchedulerInstruments()
        found = serving_certificate(settings(folder), self.instruments)
        assert found is not None
        self.certificate: ServingCertificate = found
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Served:
        context = self.certificate.context
        self.port = await self._stack.enter_async_context(
            serving(answer, "127.0.0.1:0", ssl_context=context)
        )
        watching = asyncio.create_task(self.certificate.watch())
        self._stack.push_async_callback(end, [watching])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def serial(self, folder: Path) -> int:
        """Return the serial number of the served certificate."""
        context = ssl.create_default_context(cafile=str(folder / "trusted.crt"))
        async with asyncio.timeout(DEADLINE_S):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", self.port, ssl=context, server_hostname="localhost"
            )
            served = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = await reader.read()
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
        if not answer.startswith(b"HTTP/1.1 200"):
            raise ConnectionError("closed without an answer")
        return x509.load_der_x509_certificate(served).serial_number


async def answer(_scope: object, _receive: object, send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority.new("one")
    (tmp_path / "trusted.crt").write_bytes(made.certificate.public_bytes(Encoding.PEM))
    return made


async def until(served: Served, folder: Path, serial: int) -> None:
    """Waits until it serves that certificate."""
    async with asyncio.timeout(DEADLINE_S):
        while await served.serial(folder) != serial:
            pass


async def test_a_certificate_is_renewed_before_it_ends_and_nothing_stops(
    tmp_path: Path, authority: Authority
) -> None:
    write_leaf(tmp_path, "tls", authority, SHORT)
    async with Served(tmp_path) as served:
        first_ends = served.certificate.not_after
        gauge = "hami_certificate_expiry_timestamp_seconds"
        of = {"service": "hami-scheduler", "certificate": "serving"}
        assert served.instruments.registry.get_sample_value(gauge, of) == first_ends.timestamp()

        await until(served, tmp_path, write_leaf(tmp_path, "tls", authority, LONG))

        async with asyncio.timeout(DEADLINE_S):
            while datetime.now(UTC) <= first_ends:
                await served.serial(tmp_path)
        await served.serial(tmp_path)
        shown = served.instruments.registry.get_sample_value(gauge, of)
        assert shown == served.certificate.not_after.timestamp() > first_ends.timestamp()
        reloads = "hami_scheduler_certificate_reloads_total"
        assert served.instruments.registry.get_sample_value(reloads, {"result": "loaded"}) >= 1


def test_files_that_are_no_certificates_are_one_sentence_each(tmp_path: Path) -> None:
    (tmp_path / "tls.key").write_text("nothing")
    with pytest.raises(InvalidRequest, match=r"tls.crt: not readable"):
        Served(tmp_path)
    (tmp_path / "tls.crt").write_text("nothing")
    with pytest.raises(InvalidRequest, match="are not a certificate and its key"):
        Served(tmp_path)
