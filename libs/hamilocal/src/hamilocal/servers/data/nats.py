"""NATS with JetStream on a loopback port; streams are kept in the folder between runs."""

import secrets
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from hamilocal.servers.binaries import nats_server
from hamilocal.servers.data.nats_config import NatsUser, render_nats_config
from hamilocal.supervisor.plan import ServerPlan
from hamilocal.supervisor.ports import LOOPBACK, free_port
from hamilocal.supervisor.probes import nats_ready


def prepare(
    folder: Path,
    *,
    port: int | None = None,
    users: Sequence[NatsUser] = (),
    name: str = "nats",
) -> ServerPlan:
    """Write the configuration file into `folder`; returns how to run the server.

    The URL carries no credentials; with `users` each client adds its own (`nats://name:password@host:port`).
    """
    folder = folder.absolute()
    store = folder / "jetstream"
    store.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    server_name = f"hami-{name}-{secrets.token_hex(4)}"  # the probe distinguishes our server by it
    config = folder / "nats.conf"
    config.touch(mode=0o600)  # it may hold passwords
    config.write_text(
        render_nats_config(port=port, store_dir=str(store), server_name=server_name, users=users)
    )
    return ServerPlan(
        name=name,
        argv=(str(nats_server()), "--config", str(config)),
        cwd=folder,
        log_path=folder / f"{name}.log",
        url=f"nats://{LOOPBACK}:{port}",
        port=port,
        probe=partial(nats_ready, port, server_name=server_name),
    )
