"""Certificates of our own making pass a strict verifier."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from hamicommon.tls import authority_certificate, new_key, serving_certificate

NOW = datetime(2026, 5, 1, tzinfo=UTC)
BEFORE, AFTER = NOW - timedelta(hours=1), NOW + timedelta(days=90)


def served_by(signer: str, *, trusted: str, host: str) -> None:
    keys = {name: new_key() for name in {signer, trusted}}
    roots = {
        name: authority_certificate(name, key, not_before=BEFORE, not_after=AFTER)
        for name, key in keys.items()
    }
    leaf = serving_certificate(
        ("hami-webhook.hami-system.svc", "localhost"),
        new_key().public_key(),
        issuer=roots[signer],
        issuer_key=keys[signer],
        not_before=BEFORE,
        not_after=AFTER,
    )
    policy = PolicyBuilder().store(Store([roots[trusted]])).time(NOW)
    policy.build_server_verifier(x509.DNSName(host)).verify(leaf, [])


@pytest.mark.parametrize("host", ["hami-webhook.hami-system.svc", "localhost"])
def test_a_client_that_trusts_the_authority_trusts_the_server(host: str) -> None:
    served_by("ours", trusted="ours", host=host)


@pytest.mark.parametrize(("trusted", "host"), [("another", "localhost"), ("ours", "example.com")])
def test_nobody_trusts_it_for_another_name_or_by_another_authority(trusted: str, host: str) -> None:
    with pytest.raises(VerificationError):
        served_by("ours", trusted=trusted, host=host)
