"""Describe the supervisor's children: servers, emulated Kubernetes, services, nodes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

import orjson
from hamicommon.bus.permissions import agent_user

from hamilocal.servers.data import nats, postgres, valkey
from hamilocal.servers.data.nats import NatsUser, agent_nats_user, service_nats_users
from hamilocal.supervisor.plan import ChildSpec, ServerPlan, http_health, server_child
from hamilocal.supervisor.ports import LOOPBACK
from hamilocal.system.layout import Layout, LocalCredentials, Project
from hamilocal.system.options import LocalNode, UpOptions, fakegpu_config

ADMIN_USER = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataServers:
    """Plans of the three servers, with addresses that contain credentials."""

    postgres: ServerPlan
    redis: ServerPlan
    nats: ServerPlan
    nats_admin_url: str

    def children(self) -> tuple[ChildSpec, ...]:
        """Return the servers as children; none depends on another."""
        return tuple(server_child(plan) for plan in (self.postgres, self.redis, self.nats))


def data_servers(
    layout: Layout, credentials: LocalCredentials, nodes: tuple[str, ...], ports: dict[str, int]
) -> DataServers:
    """Prepare the servers' folders; blocking, as Postgres first creates its data."""
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
    """Return the address with credentials in it."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{user}:{quote(password, safe='')}@{parts.netloc}"))


SCHEDULER_NAME = "hami-scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Input of the functions below, each of which describes one process."""

    layout: Layout
    project: Project
    options: UpOptions
    credentials: LocalCredentials
    servers: DataServers
    ports: Mapping[str, int]
    kubeconfig: Path

    def url(self, name: str, scheme: str = "http") -> str:
        """Return the address of one of our processes."""
        return f"{scheme}://{LOOPBACK}:{self.ports[name]}"

    def bind(self, name: str) -> str:
        """Return host:port for a service's `..._BIND` setting."""
        return f"{LOOPBACK}:{self.ports[name]}"

    def service_env(self, service: str, nats_user: str) -> dict[str, str]:
        """Return variables that all services share: bus, Kubernetes, traces."""
        return {
            "KUBECONFIG": str(self.kubeconfig),
            "HAMI_NATS_URL": self.servers.nats.url,
            "HAMI_NATS_USER": nats_user,
            "HAMI_NATS_PASSWORD": self.credentials.secret(f"nats-{nats_user}"),
            "HAMI_TELEMETRY_TRACES_FILE": str(self.layout.traces / f"{service}.jsonl"),
        }

    def ledger_env(self) -> dict[str, str]:
        """Return variables for services that use the database."""
        return {"HAMI_POSTGRES_DSN": self.servers.postgres.url}

    def redis_env(self) -> dict[str, str]:
        """Return the scheduler's variables for Redis."""
        return {"HAMI_REDIS_URL": self.servers.redis.url}

    def vendors_env(self, prefix: str, *, families: bool = True) -> dict[str, str]:
        """Return variables that choose the vendors, the same for all services."""
        options = self.options
        env: dict[str, str] = {}
        if options.device_config is not None:
            env[f"{prefix}_DEVICE_CONFIG_FILE"] = str(options.device_config)
        if families:
            env[f"{prefix}_ENABLE_ASCEND"] = str(options.enable_ascend).lower()
            env[f"{prefix}_ENABLE_ILUVATAR"] = str(options.enable_iluvatar).lower()
        return env


def script(name: str) -> str:
    """Return the path of a console script in this Python environment."""
    return str(Path(sys.executable).parent / name)


def api_server(context: Context) -> ChildSpec:
    """Describe the emulated Kubernetes API."""
    credentials, folder = context.credentials, context.layout.folder / "apiserver"
    url = context.url("apiserver", "https")
    return ChildSpec(
        name="apiserver",
        argv=(
            *(sys.executable, "-m", "kubelocal.apiserver", "--data", str(folder)),
            *("--port", str(context.ports["apiserver"])),
            *("--tls-cert", str(credentials.certificate("apiserver"))),
            *("--tls-key", str(credentials.key("apiserver"))),
            *("--token-file", str(credentials.tokens)),
        ),
        cwd=context.layout.folder,
        health=http_health(f"{url}/readyz", ca_file=credentials.ca),
        urls={"apiserver": url},
    )


def kube_scheduler(context: Context, configuration: Path) -> ChildSpec:
    """Describe the emulation of kube-scheduler."""
    return ChildSpec(
        name="kube-scheduler",
        argv=(
            *(sys.executable, "-m", "kubelocal.kubescheduler"),
            *("--kubeconfig", str(context.kubeconfig), "--config", str(configuration)),
        ),
        cwd=context.layout.folder,
        after=("apiserver", "scheduler"),
    )


def workloads(context: Context) -> ChildSpec:
    """Describe the emulated controllers of Deployments and Jobs."""
    return ChildSpec(
        name="workloads",
        argv=(
            *(sys.executable, "-m", "kubelocal.controllers"),
            *("--kubeconfig", str(context.kubeconfig)),
        ),
        cwd=context.layout.folder,
        after=("apiserver",),
    )


def scheduler(context: Context, after: tuple[str, ...]) -> ChildSpec:
    """Describe hami-scheduler."""
    url = context.url("scheduler")
    return ChildSpec(
        name="scheduler",
        argv=(script("hami-scheduler"),),
        cwd=context.layout.folder,
        env={
            **context.service_env("scheduler", "hami-scheduler"),
            **context.ledger_env(),
            **context.redis_env(),
            **context.vendors_env("HAMI_SCHEDULER"),
            "HAMI_SCHEDULER_HTTP_BIND": context.bind("scheduler"),
            "HAMI_SCHEDULER_SCHEDULER_NAME": SCHEDULER_NAME,
            "HAMI_SCHEDULER_NODE_SCHEDULER_POLICY": context.options.node_policy,
            "HAMI_SCHEDULER_GPU_SCHEDULER_POLICY": context.options.gpu_policy,
            "HAMI_SCHEDULER_GRANT_KEY_FILE": str(context.credentials.grant_key),
        },
        health=http_health(f"{url}/readyz"),
        after=after,
        urls={"scheduler": url},
    )


def webhook(context: Context, after: tuple[str, ...]) -> ChildSpec:
    """Describe hami-webhook."""
    url = context.url("webhook", "https")
    credentials = context.credentials
    return ChildSpec(
        name="webhook",
        argv=(script("hami-webhook"),),
        cwd=context.layout.folder,
        env={
            **context.service_env("webhook", "hami-webhook"),
            **context.vendors_env("HAMI_WEBHOOK"),
            "HAMI_WEBHOOK_HTTP_BIND": context.bind("webhook"),
            "HAMI_WEBHOOK_SCHEDULER_NAME": SCHEDULER_NAME,
            "HAMI_WEBHOOK_TLS_CERT_FILE": str(credentials.certificate("webhook")),
            "HAMI_WEBHOOK_TLS_KEY_FILE": str(credentials.key("webhook")),
        },
        health=http_health(f"{url}/readyz", ca_file=credentials.ca),
        after=after,
        urls={"webhook": url},
    )


def metrics(context: Context, after: tuple[str, ...]) -> ChildSpec:
    """Describe hami-metrics."""
    url = context.url("metrics")
    return ChildSpec(
        name="metrics",
        argv=(script("hami-metrics"),),
        cwd=context.layout.folder,
        env={
            **context.service_env("metrics", "hami-metrics"),
            **context.ledger_env(),
            "HAMI_METRICS_HTTP_BIND": context.bind("metrics"),
            "HAMI_METRICS_PAGES_BIND": context.bind("pages"),
            "HAMI_METRICS_PAGES_TRACES": str(context.layout.traces),
        },
        health=http_health(f"{url}/readyz"),
        after=after,
        urls={"metrics": url, "pages": context.url("pages")},
    )


def kubelet(context: Context, node: LocalNode, after: tuple[str, ...]) -> ChildSpec:
    """Describe a simulated kubelet with its node's driver, simulated or this machine's."""
    home = context.layout.node(node.name)
    home.mkdir(parents=True, exist_ok=True)
    return ChildSpec(
        name=f"kubelet-{node.name}",
        argv=(
            *(sys.executable, "-m", "kubelocal.kubelet", "--node", node.name),
            *("--kubeconfig", str(context.kubeconfig), "--root", str(home / "kubelet")),
            *_driver_flags(context, node, home),
            *("--native-dir", str(context.project.root / "native")),
            *("--cdi-dir", str(home / "cdi")),
            "--stop-containers-on-exit",
            *context.options.kubelet_flags,
        ),
        cwd=context.layout.folder,
        after=after,
    )


def _driver_flags(context: Context, node: LocalNode, home: Path) -> tuple[str, ...]:
    if node.own_cards:
        folder = context.options.driver_folder
        return ("--own-driver", *(("--driver-folder", str(folder)) if folder is not None else ()))
    described = fakegpu_config(
        node, system=str(context.layout.folder), state=str(home / "fakegpu.state")
    )
    config = home / "fakegpu.json"
    config.write_bytes(orjson.dumps(described, option=orjson.OPT_INDENT_2))
    return ("--fakegpu-config", str(config))


def _driver_env(context: Context, node: LocalNode, home: Path) -> dict[str, str]:
    """Return variables by which the agent finds NVML; empty: it finds this machine's."""
    folder = context.options.driver_folder
    if node.own_cards:
        return {} if folder is None else {"LD_LIBRARY_PATH": str(folder)}
    return {
        "LD_LIBRARY_PATH": str(context.project.fakegpu),
        "FAKEGPU_CONFIG": str(home / "fakegpu.json"),
        # This machine's sysfs knows other devices under the simulated cards' bus ids.
        "HAMI_NODE_AGENT_SYSFS_ROOT": str(home / "no-sysfs"),
    }


def node_agent(context: Context, node: LocalNode) -> ChildSpec:
    """Describe hami-node-agent of one local node: the real one, on the node's driver."""
    home = context.layout.node(node.name)
    name = f"node-agent-{node.name}"
    url = context.url(name)
    return ChildSpec(
        name=name,
        argv=(script("hami-node-agent"),),
        cwd=context.layout.folder,
        env={
            **agent_env(context, node.name),
            **_driver_env(context, node, home),
            "HAMI_NODE_AGENT_KUBELET_DIR": str(home / "kubelet"),
            "HAMI_NODE_AGENT_HOOK_PATH": str(home / "hook"),
            "HAMI_NODE_AGENT_STATE_DIR": str(home / "agent"),
            "HAMI_NODE_AGENT_CDI_DIR": str(home / "cdi"),
            "HAMI_NODE_AGENT_BINDING": context.options.binding_of(node),
            "HAMI_NODE_AGENT_METRICS_BIND": context.bind(name),
            # Containers are processes of this machine.
            "HAMI_NODE_AGENT_PROC_ROOT": "/proc",
            "HAMI_NODE_AGENT_SAMPLE_INTERVAL_S": "1",
            "HAMI_NODE_AGENT_ENFORCEMENT_GRACE_S": "5",
        },
        health=http_health(f"{url}/readyz"),
        after=(f"kubelet-{node.name}",),
        urls={name: url},
    )


def agent_env(context: Context, node: str) -> dict[str, str]:
    """Return variables for any node-agent of this system, also one that a user runs."""
    return {
        **context.service_env(f"node-agent-{node}", agent_user(node)),
        **context.vendors_env("HAMI_NODE_AGENT", families=False),
        "HAMI_NODE_AGENT_NODE_NAME": node,
        "HAMI_NODE_AGENT_LIBRARY_PATH": str(context.project.libvgpu),
        "HAMI_NODE_AGENT_GRANT_PUBLIC_KEY_FILE": str(context.credentials.grant_public_key),
    }
