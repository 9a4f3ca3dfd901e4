"""Certificates and keys of a control plane on loopback, new ones for each data folder."""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa

from hamilocal.servers.certificates import Authority, write_certificate, write_key


def make_pki(folder: Path) -> None:
    """Write ca.crt, server.crt, server.key and service-account.key; what is there is kept."""
    if (folder / "service-account.key").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    authority = Authority.new("hami-local-ca")
    write_certificate(folder / "ca.crt", authority.certificate)
    authority.make_serving(
        "kube-apiserver", certificate_file=folder / "server.crt", key_file=folder / "server.key"
    )
    # Service-account tokens are signed with RSA by every version (EC came later).
    write_key(folder / "service-account.key", rsa.generate_private_key(65537, 2048))
