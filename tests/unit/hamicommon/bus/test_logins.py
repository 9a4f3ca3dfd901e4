"""Logins to the bus: keys as NATS writes them, and questions that are none."""

from __future__ import annotations

import nkeys
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hamicommon.bus.logins import account_id, read_question
from hamicommon.errors import InvalidRequest

KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([number] * 32)) for number in (0, 1, 200)]


@pytest.mark.parametrize("key", KEYS, ids=["0", "1", "200"])
def test_an_accounts_name_is_the_one_that_nats_gives_it(key: Ed25519PrivateKey) -> None:
    seed = nkeys.encode_seed(key.private_bytes_raw(), nkeys.PREFIX_BYTE_ACCOUNT)

    assert account_id(key.public_key()) == nkeys.from_seed(seed).public_key.decode()


@pytest.mark.parametrize(
    "data", [b"", b"no.jwt", b"a.e30.c", b"a.bnVsbA.c", b"\xff.\xff.\xff"], ids=repr
)
def test_what_is_no_question_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not an auth callout request of NATS"):
        read_question(data)
