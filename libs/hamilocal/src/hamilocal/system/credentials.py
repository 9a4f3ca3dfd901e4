"""Keys, certificates, tokens and passwords of a local system, made once and kept in its folder."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from hamicommon.grants.signing import new_key_pair

from hamilocal.servers.certificates import Authority, write_certificate, write_file, write_key


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCredentials:
    """Paths of what was made; the passwords are read from theirs."""

    folder: Path

    @property
    def ca(self) -> Path:
        """Certificate of the authority that signed the others."""
        return self.folder / "ca.pem"

    @property
    def grant_key(self) -> Path:
        """The scheduler's signing key."""
        return self.folder / "grant.key"

    @property
    def grant_public_key(self) -> Path:
        """What agents verify grants with."""
        return self.folder / "grant.pub"

    @property
    def tokens(self) -> Path:
        """kube-apiserver's token file."""
        return self.folder / "tokens.csv"

    def certificate(self, name: str) -> Path:
        """Serving certificate of `name`."""
        return self.folder / f"{name}.pem"

    def key(self, name: str) -> Path:
        """Private key of `name`."""
        return self.folder / f"{name}.key"

    def secret(self, name: str) -> str:
        """A random secret under this name; the same on every call."""
        path = self.folder / f"{name}.secret"
        if not path.exists():
            write_file(path, secrets.token_urlsafe(24).encode(), private=True)
        return path.read_text()


def ensure_credentials(folder: Path, *, serving: tuple[str, ...]) -> LocalCredentials:
    """Makes what is missing: authority, a serving certificate per name, grant keys, tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    made = LocalCredentials(folder=folder)
    authority = _authority(made)
    for name in serving:
        if not made.certificate(name).exists():
            authority.make_serving(
                name, certificate_file=made.certificate(name), key_file=made.key(name)
            )
    if not made.grant_public_key.exists():
        private, public = new_key_pair()
        write_file(made.grant_key, private, private=True)
        write_file(made.grant_public_key, public, private=False)
    if not made.tokens.exists():
        line = f'{made.secret("kubernetes-admin")},admin,admin,"system:masters"\n'
        write_file(made.tokens, line.encode(), private=True)
    return made


def _authority(made: LocalCredentials) -> Authority:
    key_file = made.key("ca")
    if made.ca.exists():
        return Authority.load(made.ca, key_file)
    authority = Authority.new("hami local authority")
    write_key(key_file, authority.key)
    write_certificate(made.ca, authority.certificate)
    return authority
