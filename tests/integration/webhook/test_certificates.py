"""The webhook over real TLS: answers, and a certificate that is replaced under load."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from hami_webhook.bootstrap import WebhookApp, open_app
from hami_webhook.metrics import WebhookInstruments
from hami_webhook.settings import Settings
from hamicommon.errors import InvalidRequest
from hamicommon.process.serving_certificate import ServingCertificate

from tests.waiting import PATIENCE_S

ROTATIONS = 5
CLIENTS = 4

REVIEW = json.dumps(
    {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "r1",
            "operation": "CREATE",
            "namespace": "ns",
            "object": {
                "kind": "Pod",
                "metadata": {"name": "p"},
                "spec": {
                    "containers": [
                        {"name": "c", "resources": {"limits": {"nvidia.com/gpumem": "100"}}}
                    ]
                },
            },
        },
    }
).encode()


def pair(serial: int, *, valid: timedelta = timedelta(days=1)) -> tuple[bytes, bytes]:
    """A self-signed certificate for 127.0.0.1 and its key, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hami-webhook")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now + valid)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(Encoding.PEM), key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )


def write(folder: Path, content: tuple[bytes, bytes]) -> tuple[Path, Path]:
    """Write the pair as a Secret volume does: a new directory, then one swapped symlink."""
    version = folder / f"..{datetime.now(UTC).timestamp()}"
    version.mkdir()
    (version / "tls.crt").write_bytes(content[0])
    (version / "tls.key").write_bytes(content[1])
    (folder / "..new").symlink_to(version.name)
    (folder / "..new").rename(folder / "..data")
    files = (folder / "tls.crt", folder / "tls.key")
    for path in files:
        if not path.is_symlink():
            path.symlink_to(Path("..data") / path.name)
    return files


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[WebhookApp]:
    cert_file, key_file = folder / "tls.crt", folder / "tls.key"
    settings = Settings(
        http_bind="127.0.0.1:0",
        probe_bind="127.0.0.1:0",
        tls_cert_file=cert_file,
        tls_key_file=key_file,
    )
    async with open_app(settings) as app:
        yield app


async def ask(port: int) -> tuple[int, dict[str, Any]]:
    """Send a review over a new connection: (serial number of the certificate, the answer)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        served = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        head = (
            "POST /webhook HTTP/1.1\r\nHost: w\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(REVIEW)}\r\n\r\n"
        )
        writer.write(head.encode() + REVIEW)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert answer.startswith(b"HTTP/1.1 200"), answer
    return x509.load_der_x509_certificate(served).serial_number, json.loads(
        answer.partition(b"\r\n\r\n")[2]
    )


async def until_served(port: int, serial: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await ask(port))[0] != serial:
            pass


async def test_a_review_is_answered_over_tls(tmp_path: Path) -> None:
    write(tmp_path, pair(1))
    async with running(tmp_path) as app:
        serial, body = await ask(app.port)

    assert serial == 1
    assert body["response"]["allowed"] is True
    assert body["response"]["patchType"] == "JSONPatch"


async def test_certificates_change_under_load_without_a_failed_request(tmp_path: Path) -> None:
    write(tmp_path, pair(1))
    answered = 0
    done = asyncio.Event()

    async def load(port: int) -> None:
        nonlocal answered
        while not done.is_set():
            _, body = await ask(port)
            assert body["response"]["allowed"] is True
            answered += 1

    async with running(tmp_path) as app, asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(load(app.port))
        for serial in range(2, 2 + ROTATIONS):
            write(tmp_path, pair(serial))
            await until_served(app.port, serial)
        done.set()

    assert answered > ROTATIONS


async def test_a_key_that_comes_later_than_its_certificate_does_no_harm(tmp_path: Path) -> None:
    write(tmp_path, pair(1))
    certificate, key = pair(2)
    async with running(tmp_path) as app:
        data = tmp_path / (tmp_path / "..data").readlink()
        (data / "tls.crt").write_bytes(certificate)
        (tmp_path / "touch").touch()
        for _ in range(5):
            assert (await ask(app.port))[0] == 1
        (data / "tls.key").write_bytes(key)
        (tmp_path / "touch").unlink()
        await until_served(app.port, 2)


def test_a_pair_that_does_not_fit_is_counted_and_the_old_one_stays(tmp_path: Path) -> None:
    files = write(tmp_path, pair(1))
    instruments = WebhookInstruments()
    serving = ServingCertificate(*files, on_reload=instruments.count_reload)
    not_after = serving.not_after
    write(tmp_path, (pair(2)[0], pair(3)[1]))

    assert serving.reload_if_changed() is False
    assert serving.not_after == not_after
    name = "hami_webhook_certificate_reloads_total"
    assert instruments.registry.get_sample_value(name, {"result": "refused"}) == 1

    write(tmp_path, pair(4))
    assert serving.reload_if_changed() is True


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ((b"nonsense", b"nonsense"), "are not a certificate and its key"),
        (pair(1, valid=timedelta(days=-1)), "expired at"),
    ],
    ids=["no PEM", "expired"],
)
def test_an_unusable_pair_at_the_start_is_one_sentence(
    tmp_path: Path, content: tuple[bytes, bytes], sentence: str
) -> None:
    files = write(tmp_path, content)

    with pytest.raises(InvalidRequest, match=sentence):
        ServingCertificate(*files)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"tls\.crt: not readable"):
        ServingCertificate(tmp_path / "tls.crt", tmp_path / "tls.key")
