"""Files of a local system in its folder (`.hami/` by default), and their credentials.

The module also has the project's own folders (migrations, native parts), which an installation from
a checkout has beside the packages, and checks whether this machine has a driver for its own cards.
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
    """Checkout from which this command was installed."""

    root: Path

    @property
    def migrations(self) -> Path:
        """Folder of Alembic's migrations."""
        return self.root / "migrations"

    @property
    def examples(self) -> Path:
        """Folder of the demo's pods."""
        return self.root / "examples"

    @property
    def libvgpu(self) -> Path:
        """Library that is preloaded in containers, as built by `make native`."""
        return self.root / "native" / "libvgpu" / "build" / "libvgpu.so"

    @property
    def fakegpu(self) -> Path:
        """Folder of the simulated driver and of `vgpu-probe`."""
        return self.root / "native" / "fakegpu" / "build"

    def require_native(self) -> None:
        """Raise InvalidRequest if the C parts have not been built."""
        for path in (self.libvgpu, self.fakegpu / "libcuda.so.1", self.fakegpu / "vgpu-probe"):
            if not path.exists():
                raise InvalidRequest(
                    f"{path} is missing: build the native parts with `make native`"
                )


def project() -> Project:
    """Return the checkout that contains this file.

    Raises: InvalidRequest if the package was installed without one.
    """
    for parent in Path(__file__).resolve().parents:
        if (parent / "migrations" / "env.py").is_file():
            return Project(root=parent)
    raise InvalidRequest("hamictl up needs a checkout of the project: no migrations/ folder found")


def require_driver(folder: Path | None) -> None:
    """Check that the driver's libraries load. Raises: InvalidRequest.

    `folder`: their folder; None: the loader's search path.
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
    """Files of one local system."""

    folder: Path

    @property
    def state(self) -> Path:
        """State file: processes and addresses, written by the supervisor."""
        return self.folder / "state.json"

    @property
    def options(self) -> Path:
        """Options of `hamictl up`, read by the supervisor."""
        return self.folder / "options.json"

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig for kubectl and our services."""
        return self.folder / "kubeconfig"

    @property
    def credentials(self) -> Path:
        """Folder of keys, certificates, tokens and passwords (mode 0700)."""
        return self.folder / "credentials"

    @property
    def traces(self) -> Path:
        """Folder of finished spans of all services."""
        return self.folder / "traces"

    @property
    def logs(self) -> Path:
        """Folder of logs, one per process."""
        return self.folder / "logs"

    def node(self, name: str) -> Path:
        """Return the folder of one simulated node, short enough for unix sockets."""
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
    """Paths of the credentials; passwords are read from their files."""

    folder: Path

    @property
    def ca(self) -> Path:
        """Certificate of the authority that signed the others."""
        return self.folder / "ca.pem"

    @property
    def grant_key(self) -> Path:
        """Key with which the scheduler signs grants."""
        return self.folder / "grant.key"

    @property
    def grant_public_key(self) -> Path:
        """Key with which agents verify grants."""
        return self.folder / "grant.pub"

    @property
    def tokens(self) -> Path:
        """Token file of kube-apiserver."""
        return self.folder / "tokens.csv"

    def certificate(self, name: str) -> Path:
        """Return the path of the serving certificate of `name`."""
        return self.folder / f"{name}.pem"

    def key(self, name: str) -> Path:
        """Return the path of the private key of `name`."""
        return self.folder / f"{name}.key"

    def secret(self, name: str) -> str:
        """Return the random secret of this name, the same on every call."""
        path = self.folder / f"{name}.secret"
        if not path.exists():
            write_file(path, secrets.token_urlsafe(24).encode(), private=True)
        return path.read_text()


def ensure_credentials(folder: Path, *, serving: tuple[str, ...]) -> LocalCredentials:
    """Create missing credentials: authority, serving certificates, grant keys, tokens."""
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
