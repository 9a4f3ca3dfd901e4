"""Configure and check a NATS server with JetStream on a loopback port.

The folder keeps streams between runs. The server reads JSON as a form of its configuration format,
so values need no manual quoting.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hamicommon.bus.permissions import (
    METRICS_USER,
    SCHEDULER_USER,
    WEBHOOK_USER,
    Permissions,
    agent_permissions,
    agent_user,
    metrics_permissions,
    scheduler_permissions,
    webhook_permissions,
)

from hamilocal.servers.binaries import nats_server
from hamilocal.supervisor.plan import NotReadyError, ServerPlan
from hamilocal.supervisor.ports import LOOPBACK, connect, exchange, free_port


def prepare(
    folder: Path,
    *,
    port: int | None = None,
    users: Sequence[NatsUser] = (),
    name: str = "nats",
) -> ServerPlan:
    """Write the configuration file into `folder`; return how to run the server.

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


def nats_ready(port: int, *, server_name: str) -> None:
    """Check that the NATS server of this name answers and offers JetStream."""
    with connect(port) as connection:
        received = b""
        while b"\r\n" not in received:
            received += exchange(connection, b"", at_least=1)
    verb, _, body = received.partition(b" ")
    if verb != b"INFO":
        raise NotReadyError(f"port {port} answers, but not as a NATS server")
    info = json.loads(body.partition(b"\r\n")[0])
    if info.get("server_name") != server_name:
        raise NotReadyError(
            f"port {port} belongs to another NATS server, {info.get('server_name')}"
        )
    if not info.get("jetstream"):
        raise NotReadyError(f"the NATS server on port {port} runs without JetStream")


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsUser:
    """User of the bus with its permissions.

    `publish` and `subscribe` are the subjects (with wildcards) it may use; None means every
    subject, an empty tuple none. `allow_responses` lets it answer requests it has received,
    whatever their reply subject.
    """

    name: str
    password: str
    publish: tuple[str, ...] | None = None
    subscribe: tuple[str, ...] | None = None
    allow_responses: bool = False


def agent_nats_user(node: str, password: str) -> NatsUser:
    """Return the user of a node's agent, with the permissions of `hamicommon.bus.permissions`."""
    return _nats_user(agent_user(node), password, agent_permissions(node))


def service_nats_users(password: Callable[[str], str]) -> list[NatsUser]:
    """Return the users of scheduler, metrics and webhook, with their permissions in a cluster."""
    allowed = {
        SCHEDULER_USER: scheduler_permissions(),
        METRICS_USER: metrics_permissions(),
        WEBHOOK_USER: webhook_permissions(),
    }
    return [_nats_user(name, password(name), rights) for name, rights in allowed.items()]


def _nats_user(name: str, password: str, allowed: Permissions) -> NatsUser:
    return NatsUser(
        name=name,
        password=password,
        publish=allowed.publish,
        subscribe=allowed.subscribe,
        allow_responses=allowed.answers,
    )


def render_nats_config(
    *, port: int, store_dir: str, server_name: str, users: Sequence[NatsUser] = ()
) -> str:
    """Return the configuration file's text; without users, everybody may do everything."""
    config: dict[str, object] = {
        "server_name": server_name,
        "host": LOOPBACK,  # the server's own default is every interface
        "port": port,
        # Strict: an acknowledgement that a client has sent to the API is no request.
        "jetstream": {"store_dir": store_dir, "strict": True},
    }
    if users:
        config["authorization"] = {"users": [_user(user) for user in users]}
    return json.dumps(config, indent=2) + "\n"


def _user(user: NatsUser) -> dict[str, object]:
    entry: dict[str, object] = {"user": user.name, "password": user.password}
    permissions: dict[str, object] = {}
    if user.publish is not None:
        permissions["publish"] = _allow_list(user.publish)
    if user.subscribe is not None:
        permissions["subscribe"] = _allow_list(user.subscribe)
    if user.allow_responses:
        permissions["allow_responses"] = True
    if permissions:
        entry["permissions"] = permissions
    return entry


def _allow_list(subjects: tuple[str, ...]) -> dict[str, list[str]]:
    # An empty allow list would mean "everything" to the server.
    return {"allow": list(subjects)} if subjects else {"deny": [">"]}
