"""Certificates and keys of a control plane on loopback, made anew for each data folder.

One authority, one serving pair, one signing key; nothing outside of the folder trusts them.
"""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hamictl.servers.ports import LOOPBACK

_VALID_DAYS = 3650
_BACKDATED_MINUTES = 5  # a container's clock may be a little behind


def make_pki(folder: Path) -> None:
    """Write ca.crt, server.crt, server.key and service-account.key; what is there is kept."""
    if (folder / "service-account.key").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca = _certificate("hami-local-ca", ca_key.public_key(), issuer=None, issuer_key=ca_key)
    key = ec.generate_private_key(ec.SECP256R1())
    serving = _certificate("kube-apiserver", key.public_key(), issuer=ca, issuer_key=ca_key)
    (folder / "ca.crt").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    (folder / "server.crt").write_bytes(serving.public_bytes(serialization.Encoding.PEM))
    _write_key(folder / "server.key", key)
    # Service-account tokens are signed with RSA by every version (EC came later).
    _write_key(folder / "service-account.key", rsa.generate_private_key(65537, 2048))


def _certificate(
    name: str,
    public_key: ec.EllipticCurvePublicKey,
    *,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    authority = issuer is None
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=_BACKDATED_MINUTES))
        .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
        .add_extension(_usage(authority=authority), critical=True)
    )
    if not authority:
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(LOOPBACK))]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        server_only = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        builder = builder.add_extension(server_only, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
