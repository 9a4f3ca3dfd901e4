"""Prepare files and servers of the local system, and list its children in order.

Run as `python -m hamilocal.system FOLDER` it is the supervisor process that `hamictl up` starts; it
ends when it is asked to stop, with everything it started.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import yaml
from hamicommon.admission.registration import registration_of, webhook_configuration
from hamicommon.errors import Conflict
from hamicommon.k8s.client import KubeApi, open_kube_api
from hamicommon.k8s.types import Json
from hamicommon.ledger.migrations import upgrade
from hamicommon.settings import PostgresSettings
from pydantic import SecretStr

from hamilocal.servers.certificates import write_kubeconfig
from hamilocal.supervisor.plan import Spec, StepSpec
from hamilocal.supervisor.ports import stable_ports
from hamilocal.system import services
from hamilocal.system.kubernetes import scheduler_configuration
from hamilocal.system.layout import Layout, ensure_credentials, project
from hamilocal.system.options import UpOptions
from hamilocal.system.services import Context, data_servers

_COLLECTION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
# matchConditions are on by default from this version on.
_MATCH_CONDITIONS_SINCE = (1, 28)


def knows_match_conditions(version: Json) -> bool:
    """Return whether this /version has match conditions; a vendor's "27+" counts as 27."""
    minor = re.match(r"\d+", version.get("minor", "0"))
    return (int(version.get("major", 0)), int(minor.group()) if minor else 0) >= (
        _MATCH_CONDITIONS_SINCE
    )


async def register_webhook(context: Context) -> None:
    """Create or update the MutatingWebhookConfiguration."""
    async with open_kube_api(context.kubeconfig) as api:
        vendors = context.options.vendors()
        modern = knows_match_conditions(await api.get("/version"))
        body = webhook_configuration(
            registration_of(
                vendors,
                target=context.url("webhook", "https") + "/webhook",
                ca_bundle_pem=context.credentials.ca.read_bytes(),
                failure_policy="Fail" if modern else "Ignore",
                match_conditions=modern,
            )
        )
        await _create_or_replace(api, body)


async def _create_or_replace(api: KubeApi, body: Json) -> None:
    try:
        await api.create(_COLLECTION, body)
    except Conflict:
        path = f"{_COLLECTION}/{body['metadata']['name']}"
        existing = await api.get(path)
        body["metadata"]["resourceVersion"] = existing["metadata"]["resourceVersion"]
        await api.replace(path, body)


_PORTS = ("postgres", "redis", "nats", "apiserver", "scheduler", "webhook", "metrics", "pages")
_SERVING = ("apiserver", "webhook")


def prepare(layout: Layout, options: UpOptions) -> services.Context:
    """Create credentials, ports, kubeconfig and servers' folders; blocking, slow the first time."""
    checkout = project()
    checkout.require_native()
    layout.traces.mkdir(parents=True, exist_ok=True)
    nodes = tuple(node.name for node in options.local_nodes())
    names = (*_PORTS, *(f"node-agent-{node}" for node in nodes))
    ports = stable_ports(names, layout.folder / "ports.json")
    credentials = ensure_credentials(layout.credentials, serving=_SERVING)
    context = services.Context(
        layout=layout,
        project=checkout,
        options=options,
        credentials=credentials,
        servers=data_servers(layout, credentials, (*nodes, *options.external_nodes), ports),
        ports=ports,
        kubeconfig=options.kubeconfig or layout.kubeconfig,
    )
    if options.kubeconfig is None:
        write_kubeconfig(
            layout.kubeconfig,
            server=context.url("apiserver", "https"),
            authority=credentials.ca.read_bytes(),
            token=credentials.secret("kubernetes-admin"),
        )
    return context


def specs(context: services.Context) -> Sequence[Spec]:
    """Return all processes and steps, each after those that it needs."""
    emulated = context.options.kubeconfig is None
    kubernetes_ready = ("apiserver",) if emulated else ()
    found: list[Spec] = [*context.servers.children()]
    found.append(_migrations(context))
    if emulated:
        found.append(services.api_server(context))
    found.append(services.webhook(context, ("nats",)))
    found.append(
        StepSpec(
            name="webhook-registration",
            run=lambda: register_webhook(context),
            after=("webhook", *kubernetes_ready),
        )
    )
    found.append(services.scheduler(context, ("migrations", "redis", "nats", *kubernetes_ready)))
    found.append(services.metrics(context, ("migrations", "nats")))
    if emulated:
        configuration = context.layout.folder / "kube-scheduler.yaml"
        described = scheduler_configuration(
            kubeconfig_path=str(context.kubeconfig),
            extender_url=context.url("scheduler"),
            scheduler_name=services.SCHEDULER_NAME,
            resources=context.options.vendors().resource_names,
            score_pods_without_cards=context.options.score_pods_without_cards,
        )
        configuration.write_text(yaml.safe_dump(described, sort_keys=False))
        found.append(services.kube_scheduler(context, configuration))
        found.append(services.workloads(context))
    for node in context.options.local_nodes():
        found.append(services.kubelet(context, node, kubernetes_ready))
        found.append(services.node_agent(context, node))
    return found


def info(context: services.Context) -> dict[str, object]:
    """Return addresses that `hamictl up --json` prints beside the pids."""
    return {
        "kubeconfig": str(context.kubeconfig),
        "pages_url": context.url("pages"),
        "scheduler_url": context.url("scheduler"),
        "webhook_url": context.url("webhook", "https") + "/webhook",
        "metrics_url": context.url("metrics") + "/metrics",
        "postgres_dsn": context.servers.postgres.url,
        "redis_url": context.servers.redis.url,
        "nats_url": context.servers.nats_admin_url,
        "traces": str(context.layout.traces),
        "node_agents": [
            {
                "node": node.name,
                "metrics_url": context.url(f"node-agent-{node.name}") + "/metrics",
            }
            for node in context.options.local_nodes()
        ],
        "external_nodes": [
            {"node": node, "node_agent_env": services.agent_env(context, node)}
            for node in context.options.external_nodes
        ],
    }


def _migrations(context: services.Context) -> StepSpec:
    settings = PostgresSettings(dsn=SecretStr(context.servers.postgres.url))
    return StepSpec(
        name="migrations",
        run=lambda: asyncio.to_thread(upgrade.upgrade, settings, context.project.migrations),
        after=("postgres",),
    )
