"""Keys, users and passwords: missing ones are made, existing ones are kept."""

from __future__ import annotations

import subprocess
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import nkeys
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from hami_webhook.credentials import NAMES, Data, login_issuer, missing
from hamicommon.errors import InvalidRequest
from hamilocal.servers.binaries import nats_server
from hypothesis import given
from hypothesis import strategies as st

NAMESPACE = "gpu-system"


def make_missing(held: dict[str, Data] | None = None) -> dict[str, Data]:
    return missing(held or {}, NAMESPACE)


def private_key(data: Data) -> Ed25519PrivateKey:
    key = load_pem_private_key(data["private.pem"], password=None)
    assert isinstance(key, Ed25519PrivateKey)
    return key


@given(st.sets(st.sampled_from(NAMES)))
def test_exactly_what_is_not_held_is_made(held: set[str]) -> None:
    before = {name: data for name, data in make_missing().items() if name in held}

    assert sorted(make_missing(before)) == sorted(set(NAMES) - held)


def test_a_run_that_ended_after_any_secret_is_finished_by_the_next() -> None:
    whole = list(missing({}, NAMESPACE).items())
    for cut in range(len(whole) + 1):
        held = dict(whole[:cut])

        held |= make_missing(held)

        public = load_pem_public_key(held["hami-grant-public-key"]["public.pem"])
        assert isinstance(public, Ed25519PublicKey)
        assert public == private_key(held["hami-grant-key"]).public_key()


def test_no_two_installations_and_no_two_users_share_a_password() -> None:
    passwords = [
        data["password"] for _ in range(2) for data in make_missing().values() if "password" in data
    ]

    assert len(passwords) == 12
    assert len({*passwords}) == len(passwords)


@pytest.mark.parametrize("digits", ["3e11d08d25f3b423", "1234567890123456", "0123"])
def test_nats_reads_a_password_as_a_text_whatever_its_digits(
    digits: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("hami_webhook.credentials.secrets.token_hex", lambda _bytes: digits)
    password = missing({}, "x")["hami-nats-webhook"]["password"].decode()
    config = tmp_path / "nats.conf"
    config.write_text("authorization { users: [{ user: a, password: $PASSWORD }] }")

    done = subprocess.run(
        [nats_server(), "-t", "-c", config],
        env={"PASSWORD": password},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    # Older versions of NATS take no number with an exponent before a letter.
    assert password[:1].isalpha()


def test_each_service_logs_in_to_postgres_as_itself_and_verifies_the_server() -> None:
    found = make_missing()
    roles = {}
    for name, data in found.items():
        if "dsn" in data:
            dsn = urlsplit(data["dsn"].decode())
            assert dsn.password == data["password"].decode()
            assert (dsn.hostname, dsn.port, dsn.path) == (
                "hami-postgres.gpu-system.svc",
                5432,
                "/hami",
            )
            assert parse_qs(dsn.query)["sslmode"] == ["verify-full"]
            roles[name] = dsn.username

    assert roles == {
        "hami-postgres-owner": "hami",
        "hami-postgres-scheduler": "hami_scheduler",
        "hami-postgres-metrics": "hami_metrics",
    }


def test_redis_knows_the_scheduler_alone() -> None:
    redis = make_missing()["hami-redis"]
    url = urlsplit(redis["url"].decode())
    default, user = redis["users.acl"].decode().splitlines()

    assert default == "user default off"
    assert f"user {url.username} on >{url.password} ~hami:*" in user


def test_the_bus_knows_the_login_key_by_its_own_name_for_it() -> None:
    data = make_missing()["hami-nats-login-key"]
    seed = nkeys.encode_seed(private_key(data).private_bytes_raw(), nkeys.PREFIX_BYTE_ACCOUNT)

    assert login_issuer(data) == nkeys.from_seed(seed).public_key.decode()


def pem_of_another_kind() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@pytest.mark.parametrize("pem", [b"", b"rubbish", pem_of_another_kind()], ids=["no", "bad", "ec"])
def test_a_key_that_can_not_sign_is_named(pem: bytes) -> None:
    held = {"hami-grant-key": {"private.pem": pem}}

    with pytest.raises(InvalidRequest, match=r"^Secret hami-grant-key: private.pem "):
        missing(held, NAMESPACE)
