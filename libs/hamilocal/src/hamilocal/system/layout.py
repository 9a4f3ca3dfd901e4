"""The folder of a local system, `.hami/` unless another is named, and the credentials in it.

It also knows the project's own folders (migrations, native parts), which an installation from a
checkout has beside the packages, and whether this machine has a driver of cards of its own.
"""

from __future__ import annotations

import ctypes
import hashlib
import secrets
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hamicommon.errors import InvalidRequest
from hamicommon.grants.signing import new_key_pair

from hamilocal.servers.certificates import Authority, write_certificate, write_file, write_key

# sockaddr_un holds 108 bytes with the final zero; the longest name we put below a node's folder is
# "kubelet/device-plugins/nvidia-gpu.sock", with a node name of some 20 characters before it.
_LONGEST_FOLDER = 107 - 60
DRIVER_LIBRARIES = ("libnvidia-ml.so.1", "libcuda.so.1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """The checkout that this command was installed from."""

    root: Path

    @property
    def migrations(self) -> Path:
        """Alembic's folder."""
        return self.root / "migrations"

    @property
    def examples(self) -> Path:
        """The demo's pods."""
        return self.root / "examples"

    @property
    def libvgpu(self) -> Path:
        """The preloaded library, as built by `make native`."""
        return self.root / "native" / "libvgpu" / "build" / "libvgpu.so"

    @property
    def fakegpu(self) -> Path:
        """Folder of the stand-in driver and of `vgpu-probe`."""
        return self.root / "native" / "fakegpu" / "build"

    def require_native(self) -> None:
        """Raises InvalidRequest when the C parts have not been built."""
        for path in (self.libvgpu, self.fakegpu / "libcuda.so.1", self.fakegpu / "vgpu-probe"):
            if not path.exists():
                raise InvalidRequest(
                    f"{path} is missing: build the native parts with `make native`"
                )


def project() -> Project:
    """Find the checkout above this file.

    Raises: InvalidRequest when the package was installed without one.
    """
    for parent in Path(__file__).resolve().parents:
        if (parent / "migrations" / "env.py").is_file():
            return Project(root=parent)
    raise InvalidRequest("hamictl up needs a checkout of the project: no migrations/ folder found")


def require_driver(folder: Path | None) -> None:
    """Raises: InvalidRequest when the driver's libraries do not load.

    `folder`: where they lie; None: where the loader looks.
    """
    for name in DRIVER_LIBRARIES:
        path = name if folder is None else str(folder / name)
        try:
            ctypes.CDLL(path)
        except OSError as exc:
            raise InvalidRequest(
                f"--own-cards: no NVIDIA driver of this machine is found ({exc});"
                " --driver-folder names where its libraries lie"
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The files of one local system."""

    folder: Path

    @property
    def state(self) -> Path:
        """Processes and addresses; written by the supervisor."""
        return self.folder / "state.json"

    @property
    def options(self) -> Path:
        """Options of `hamictl up`; read by the supervisor."""
        return self.folder / "options.json"

    @property
    def kubeconfig(self) -> Path:
        """For kubectl and for our services."""
        return self.folder / "kubeconfig"

    @property
    def credentials(self) -> Path:
        """Keys, certificates, tokens and passwords (mode 0700)."""
        return self.folder / "credentials"

    @property
    def traces(self) -> Path:
        """Finished spans of all services."""
        return self.folder / "traces"

    @property
    def logs(self) -> Path:
        """One log per process."""
        return self.folder / "logs"

    def node(self, name: str) -> Path:
        """Everything of one simulated node, by a path short enough for unix sockets."""
        return self._short() / "nodes" / name

    def _short(self) -> Path:
        if len(str(self.folder)) <= _LONGEST_FOLDER:
            return self.folder
        digest = hashlib.sha256(str(self.folder).encode()).hexdigest()[:10]
        link = Path(tempfile.gettempdir()) / f"hami-{digest}"
        if not link.is_symlink():
            link.symlink_to(self.folder, target_is_directory=True)
        return link


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
        """The key by which agents verify grants."""
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
    """Make what is missing: authority, a serving certificate per name, grant keys, tokens."""
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
