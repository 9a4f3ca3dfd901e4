"""A real kube-apiserver on loopback, with tokens, RBAC and signed service accounts.

The two admission plugins that wait for a controller manager are off where none runs beside it:
ServiceAccount (nobody would make the default accounts) and TaintNodesByCondition (nobody would
take the not-ready taint of a new node off).
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hamilocal.servers.control_plane.kubeconfig import write_kubeconfig
from hamilocal.servers.control_plane.pki import make_pki
from hamilocal.supervisor.plan import ServerPlan
from hamilocal.supervisor.ports import LOOPBACK, free_port
from hamilocal.supervisor.probes import http_ready

_SERVICE_RANGE = "10.0.0.0/24"
_WANT_CONTROLLERS = ("ServiceAccount", "TaintNodesByCondition")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeUser:
    """Somebody who may log in with a token; RBAC decides what they may do."""

    name: str
    groups: tuple[str, ...] = ()


ADMIN = KubeUser(name="admin", groups=("system:masters",))
SCHEDULER = KubeUser(name="system:kube-scheduler")


def node_user(node: str) -> KubeUser:
    """The kubelet of a node."""
    return KubeUser(name=f"system:node:{node}", groups=("system:nodes",))


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServer:
    """What clients of the server need; `kubeconfigs` maps a user's name to a file."""

    plan: ServerPlan
    ca_file: Path
    kubeconfigs: dict[str, Path]

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.kubeconfigs[ADMIN.name]


def prepare(
    folder: Path,
    *,
    binary: Path,
    etcd_url: str,
    users: Sequence[KubeUser] = (),
    arguments: Sequence[str] = (),
    service_accounts: bool = False,
) -> ApiServer:
    """Write keys, tokens and kubeconfigs into `folder`; returns how to run the server.

    `arguments` are added at the end of its command line (such as a different audit policy).
    `service_accounts`: pods need their account, which a controller manager makes.
    """
    folder = folder.absolute()
    make_pki(folder)
    port = free_port()
    url = f"https://{LOOPBACK}:{port}"
    kubeconfigs = write_users(folder, url, (ADMIN, SCHEDULER, *users))
    key = folder / "service-account.key"
    off = ("TaintNodesByCondition",) if service_accounts else _WANT_CONTROLLERS
    options = {
        "etcd-servers": etcd_url,
        "bind-address": LOOPBACK,
        "secure-port": str(port),
        "tls-cert-file": str(folder / "server.crt"),
        "tls-private-key-file": str(folder / "server.key"),
        "token-auth-file": str(folder / "tokens.csv"),
        "authorization-mode": "Node,RBAC",
        "service-account-key-file": str(key),
        "service-account-signing-key-file": str(key),
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-cluster-ip-range": _SERVICE_RANGE,
        "disable-admission-plugins": ",".join(off),
        "endpoint-reconciler-type": "none",  # it refuses loopback addresses
        "allow-privileged": "true",
    }
    argv = (str(binary), *(f"--{name}={value}" for name, value in options.items()), *arguments)
    ca_file = folder / "ca.crt"
    plan = ServerPlan(
        name="kube-apiserver",
        argv=argv,
        cwd=folder,
        log_path=folder / "kube-apiserver.log",
        url=url,
        port=port,
        probe=partial(http_ready, f"{url}/readyz", ca_file=ca_file),
        start_timeout_s=120.0,
    )
    return ApiServer(plan=plan, ca_file=ca_file, kubeconfigs=kubeconfigs)


def write_users(folder: Path, url: str, users: Sequence[KubeUser]) -> dict[str, Path]:
    """Give every user a token (tokens.csv) and a kubeconfig; the files by user name."""
    rows, files = [], {}
    authority = (folder / "ca.crt").read_bytes()
    for user in users:
        token = secrets.token_hex(16)
        groups = ",".join(user.groups)
        rows.append(f'{token},{user.name},{user.name},"{groups}"')
        files[user.name] = write_kubeconfig(
            folder / f"{user.name.replace(':', '-')}.kubeconfig",
            server=url,
            authority=authority,
            user=user.name,
            token=token,
        )
    tokens = folder / "tokens.csv"
    tokens.touch(mode=0o600)
    tokens.write_text("\n".join(rows) + "\n")
    return files
