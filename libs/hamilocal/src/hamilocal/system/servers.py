"""The embedded servers of a local system, as children of its supervisor."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, urlsplit, urlunsplit

from hamicommon.bus.permissions import agent_user

from hamilocal.servers.data import nats, postgres, valkey
from hamilocal.servers.data.nats_config import NatsUser, agent_nats_user, service_nats_users
from hamilocal.supervisor.plan import ServerPlan
from hamilocal.supervisor.specs import ChildSpec, server_child
from hamilocal.system.credentials import LocalCredentials
from hamilocal.system.layout import Layout

ADMIN_USER = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataServers:
    """Where the three servers answer; the addresses carry credentials."""

    postgres: ServerPlan
    redis: ServerPlan
    nats: ServerPlan
    nats_admin_url: str

    def children(self) -> tuple[ChildSpec, ...]:
        """As specs; none depends on another."""
        return tuple(server_child(plan) for plan in (self.postgres, self.redis, self.nats))


def data_servers(
    layout: Layout, credentials: LocalCredentials, nodes: tuple[str, ...], ports: dict[str, int]
) -> DataServers:
    """Prepares their folders; blocking (the first time Postgres makes its data folder)."""
    admin = NatsUser(name=ADMIN_USER, password=credentials.secret(f"nats-{ADMIN_USER}"))
    users = [admin, *service_nats_users(lambda name: credentials.secret(f"nats-{name}"))]
    users += [
        agent_nats_user(node, credentials.secret(f"nats-{agent_user(node)}")) for node in nodes
    ]
    bus = nats.prepare(layout.folder / "nats", port=ports["nats"], users=users)
    return DataServers(
        postgres=postgres.prepare(
            layout.folder / "postgres",
            port=ports["postgres"],
            password=credentials.secret("postgres"),
        ),
        redis=valkey.prepare(
            layout.folder / "redis", port=ports["redis"], password=credentials.secret("redis")
        ),
        nats=bus,
        nats_admin_url=with_user(bus.url, ADMIN_USER, credentials.secret(f"nats-{ADMIN_USER}")),
    )


def with_user(url: str, user: str, password: str) -> str:
    """The address with credentials in it."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{user}:{quote(password, safe='')}@{parts.netloc}"))
