"""containerd with its CRI plugin, apart from any other: own root, socket and network.

Needs Debian's containerd, runc and containernetworking-plugins, and root. Another containerd than
the machine's may be named by the folder of its programs.
"""

import json
import shutil
import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hamilocal.supervisor.plan import NotReadyError, ServerError, ServerPlan

PAUSE_IMAGE = "hami.local/pause:1"
NAMESPACE = "k8s.io"
_CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
_CTR_TIMEOUT_S = 60.0
_SHIM = "containerd-shim-runc-v2"
BRIDGE = "hami0"
_SUBNET = "10.83.0.0/16"
_CONFIG = """version = 2
root = "{root}"
state = "{state}"
[grpc]
address = "{socket}"
[debug]
level = "warn"
[plugins."io.containerd.internal.v1.opt"]
path = "{root}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = true
disable_apparmor = true
{cdi}stream_server_address = "127.0.0.1"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{cni_bin}"
conf_dir = "{cni_conf}"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "{snapshotter}"
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
{shim}[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "runc"
SystemdCgroup = false
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cdi:
    """containerd's switch for CDI; it knows these keys from 1.7 on."""

    enabled: bool
    directory: Path

    def lines(self) -> str:
        """Lines of containerd's configuration."""
        return f'enable_cdi = {str(self.enabled).lower()}\ncdi_spec_dirs = ["{self.directory}"]\n'


def prepare(
    folder: Path,
    *,
    snapshotter: str = "overlayfs",
    programs: Path | None = None,
    cdi: Cdi | None = None,
) -> ServerPlan:
    """Write the configuration; returns how to run it. `url` is the CRI endpoint.

    `programs`: folder of containerd and its shim; None: the machine's own.

    Raises:
        ServerError: a program or the network plugins are missing, or the path is too long.
    """
    folder = folder.absolute()
    cni = next((one for one in _CNI_FOLDERS if (one / "bridge").exists()), None)
    lacking = [name for name in ("containerd", "runc", "ctr") if shutil.which(name) is None]
    if lacking or cni is None:
        raise ServerError(
            "a real node needs containerd, runc and the CNI plugins; install them with:"
            " apt-get install -y containerd runc containernetworking-plugins busybox-static"
        )
    socket = folder / "containerd.sock"
    if len(str(socket)) > 100:
        raise ServerError(f"{socket} is too long for a socket; choose a shorter folder")
    _write_network(folder / "cni")
    config = folder / "containerd.toml"
    config.write_text(
        _CONFIG.format(
            root=folder / "root",
            state=folder / "state",
            socket=socket,
            pause=PAUSE_IMAGE,
            cni_bin=cni,
            cni_conf=folder / "cni",
            snapshotter=snapshotter,
            cdi="" if cdi is None else cdi.lines(),
            # Of its containerd's version, and not the one in the path.
            shim="" if programs is None else f'runtime_path = "{programs / _SHIM}"\n',
        )
    )
    return ServerPlan(
        name="containerd",
        argv=(
            "containerd" if programs is None else str(programs / "containerd"),
            *("--config", str(config)),
        ),
        cwd=folder,
        log_path=folder / "containerd.log",
        url=f"unix://{socket}",
        port=0,
        probe=partial(_ready, socket),
    )


def ctr(socket: Path, *arguments: str) -> str:
    """Run containerd's client in the namespace of Kubernetes; its standard output.

    Raises:
        ServerError: it failed; the message is its own.
    """
    try:
        done = subprocess.run(
            ["ctr", "--address", socket, "--namespace", NAMESPACE, *arguments],
            capture_output=True,
            text=True,
            timeout=_CTR_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise ServerError(f"ctr {arguments[0]} did not end in {_CTR_TIMEOUT_S:g} s") from exc
    if done.returncode != 0:
        raise ServerError(f"ctr {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def _ready(socket: Path) -> None:
    try:
        ctr(socket, "version")
    except ServerError as exc:
        raise NotReadyError(str(exc)) from exc


def _write_network(folder: Path) -> None:
    """Pods get addresses of a bridge of their own, without a way out."""
    folder.mkdir(parents=True, exist_ok=True)
    addresses = {"type": "host-local", "ranges": [[{"subnet": _SUBNET}]]}
    bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "ipam": addresses}
    network = {
        "cniVersion": "0.3.1",
        "name": "hami",
        "plugins": [bridge, {"type": "loopback"}],
    }
    (folder / "10-hami.conflist").write_text(json.dumps(network, indent=2))
