"""The emulated API server as a process of its own, with the same users and files as a real one."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from hamilocal.servers.control_plane.apiserver import (
    ADMIN,
    SCHEDULER,
    ApiServer,
    KubeUser,
    write_users,
)
from hamilocal.servers.control_plane.pki import make_pki
from hamilocal.supervisor.plan import ServerPlan
from hamilocal.supervisor.ports import LOOPBACK, free_port
from hamilocal.supervisor.probes import http_ready


def prepare(
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
