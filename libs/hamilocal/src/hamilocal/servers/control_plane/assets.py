"""A real control plane for tests: etcd, kube-apiserver and kube-scheduler of one folder.

The folder (`KUBEBUILDER_ASSETS` of those who run `make test-e2e`) holds kube-apiserver and
kube-scheduler, and perhaps etcd; without it the one of the development set is used.
"""

import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hamilocal.servers.binaries import etcd_server
from hamilocal.servers.control_plane import apiserver, etcd, kube_scheduler
from hamilocal.servers.control_plane.apiserver import ApiServer, KubeUser
from hamilocal.servers.processes import running
from hamilocal.supervisor.plan import ServerError, ServerPlan

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
    """A running API server and what is needed to put a kube-scheduler beside it."""

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
    ) -> ServerPlan:
        """How to run the real kube-scheduler against this server (see `processes.running`)."""
        kubeconfig = self.server.kubeconfigs[apiserver.SCHEDULER.name]
        config = kube_scheduler.scheduler_config(
            version=self.assets.version,
            kubeconfig=kubeconfig,
            extenders=extenders,
            profiles=profiles,
            back_off_s=back_off_s,
            node_percent=node_percent,
        )
        return kube_scheduler.prepare(
            self.folder / "scheduler",
            binary=self.assets.scheduler,
            kubeconfig=kubeconfig,
            config=config,
        )


def find_assets(folder: Path) -> Assets:
    """What is in the folder.

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
    etcd_plan = etcd.prepare(folder / "etcd", binary=assets.etcd)
    with running(etcd_plan, die_with_parent=die_with_parent):
        server = apiserver.prepare(
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
