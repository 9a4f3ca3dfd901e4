"""What is watched at the API server, and who handles it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hamicommon.domain.ids import NodeName
from hamicommon.dra.shapes import TEMPLATE_LABELS, templates_path
from hamicommon.k8s.annotations import DEVICE_CORDON, annotations_of, decode_cordon, split_list
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.informer import Informer
from hamicommon.k8s.types import JsonMapping

from hami_scheduler.activity import SchedulerLease
from hami_scheduler.adoption.claim_holders import ClaimHolders
from hami_scheduler.bootstrap.connections import Connections
from hami_scheduler.bootstrap.holders import claim_holders
from hami_scheduler.bootstrap.shared import Core
from hami_scheduler.bus.inventories import InventoryReports
from hami_scheduler.ledger.quota import quota_limits
from hami_scheduler.reconcile.ended_waits import EndedWaits
from hami_scheduler.settings import Settings
from hami_scheduler.watch.annotated_inventory import AnnotatedInventory, MalformedAnnotations
from hami_scheduler.watch.annotated_nodes import AnnotatedNodes
from hami_scheduler.watch.claim_templates import ClaimTemplates, card_sizes_mib
from hami_scheduler.watch.host_cpu import HostCpu
from hami_scheduler.watch.node_annotations import lives
from hami_scheduler.watch.node_groups import NodeGroups
from hami_scheduler.watch.nodes import NodeSync, UnmatchedCordons
from hami_scheduler.watch.pods import NodeWatch, PodWatch
from hami_scheduler.watch.quotas import QuotaSync
from hami_scheduler.watch.trim import trimmed_node, trimmed_pod

LEASES = "/apis/coordination.k8s.io/v1/namespaces"
LEASE_BACKOFF_S = 1.0
"""Well within the Lease's duration: one that is not seen counts as one that is not renewed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watches:
    """The informers and their handlers."""

    pods: PodWatch
    nodes: NodeWatch
    annotated: AnnotatedNodes
    node_sync: NodeSync
    node_groups: NodeGroups
    quotas: QuotaSync
    unmatched_cordons: UnmatchedCordons
    pod_informer: Informer
    node_informer: Informer
    quota_informer: Informer
    holders: ClaimHolders
    ended_waits: EndedWaits
    templates: ClaimTemplates | None = None
    """Where limits may become claims."""
    template_informer: Informer | None = None

    def informers(self) -> dict[str, Informer]:
        """All of them, by the names of their loops."""
        found = {
            "pods": self.pod_informer,
            "nodes": self.node_informer,
            "quotas": self.quota_informer,
        }
        if self.template_informer is not None:
            found["templates"] = self.template_informer
        return found

    def missing(self) -> dict[str, str]:
        """Informers that have not listed yet."""
        informers = {"pods": self.pod_informer, "nodes": self.node_informer}
        return {
            name: "the API server has not been listed yet"
            for name, informer in informers.items()
            if not informer.synced.is_set()
        }


def lease_informer(settings: Settings, api: KubeApi, lease: SchedulerLease) -> Informer:
    """Return the informer that shows `lease` the object."""
    return Informer(
        api,
        f"{LEASES}/{settings.lease_namespace}/leases",
        on_upsert=lease.on_upsert,
        on_delete=lease.on_delete,
        backoff_last_s=LEASE_BACKOFF_S,
        fieldSelector=f"metadata.name={settings.lease_name}",
    )


def watches_of(core: Core, connections: Connections, inventories: InventoryReports) -> Watches:
    """Pods, nodes and quotas; each handler takes objects as the informer sees them."""
    pods = PodWatch(
        store=connections.store,
        transitions=core.transitions,
        state=core.state,
        waiting=core.demand.waiting,
        request_of=core.requests.of,
        scheduler_name=core.settings.scheduler_name,
        bulkhead=core.instruments.bulkhead,
    )
    unmatched = UnmatchedCordons(journal=connections.journal, events=connections.events)
    node_sync = NodeSync(
        store=connections.inventory,
        view=core.state,
        forget=inventories.forget,
        on_freed=core.requeuer.capacity_freed,
        unmatched=unmatched,
        bulkhead=core.instruments.bulkhead,
    )
    groups = NodeGroups(
        store=connections.inventory,
        labels=split_list(core.settings.node_group_labels),
        bulkhead=core.instruments.bulkhead,
    )
    nodes = NodeWatch(cordon_of=_cordon_of, on_cordon=node_sync.cordon, on_gone=node_sync.gone)

    def cards_written(node: NodeName) -> None:
        node_sync.again(node)
        core.requeuer.capacity_freed()

    annotated = AnnotatedNodes(
        inventory=AnnotatedInventory(
            store=connections.inventory,
            view=core.state,
            nodes=connections.nodes,
            vendors=core.vendors,
            refused=core.refused,
            malformed=MalformedAnnotations(connections.journal, core.instruments),
            on_written=cards_written,
        ),
        locks=core.mirrored,
        vendors=core.vendors,
        bulkhead=core.instruments.bulkhead,
    )

    async def quotas_written() -> None:
        await core.state.refresh_quotas()
        core.requeuer.capacity_freed()

    quotas = QuotaSync(
        store=connections.quotas,
        limits_of=lambda quota: quota_limits(quota, core.vendors),
        synced=lambda: quota_informer.synced.is_set(),
        on_written=quotas_written,
        bulkhead=core.instruments.bulkhead,
    )

    templates, template_informer = None, None
    if core.settings.claim_templates == "on":
        templates = ClaimTemplates(
            connections.templates,
            card_sizes_mib=lambda: card_sizes_mib(core.state.cluster.models),
            bulkhead=core.instruments.bulkhead,
        )
        template_informer = Informer(
            connections.api,
            templates_path(),
            on_upsert=templates.template_seen,
            on_delete=templates.template_gone,
            bulkhead=core.instruments.bulkhead,
            labelSelector=",".join(f"{key}={value}" for key, value in TEMPLATE_LABELS.items()),
        )

    holders = claim_holders(core, connections)
    ended_waits = EndedWaits(
        connections.decisions,
        pods=lambda: pod_informer.store.values(),
        listed=lambda: pod_informer.synced.is_set(),
    )
    cpu = HostCpu(core.state.cluster.set_free_cpu) if core.settings.host_cpu_in_score else None

    def pod_seen(new: dict[str, Any], old: dict[str, Any] | None) -> None:
        pods.on_upsert(new, old)
        holders.pod_seen(new)
        if templates is not None:
            templates.pod_seen(new)
        if cpu is not None:
            cpu.pod_seen(new)

    def pod_gone(pod: dict[str, Any]) -> None:
        pods.on_delete(pod)
        ended_waits.on_delete(pod)
        holders.pod_gone(pod)
        if templates is not None:
            templates.pod_gone(pod)
        if cpu is not None:
            cpu.pod_gone(pod)

    def node_seen(new: dict[str, Any], old: dict[str, Any] | None) -> None:
        if cpu is not None:
            cpu.node_seen(new)
        nodes.on_upsert(new, old)
        groups.node_seen(new)
        annotated.on_upsert(new, old)
        core.liveness.node_seen(new["metadata"]["name"], lives(new, core.vendors))

    def node_gone(node: dict[str, Any]) -> None:
        nodes.on_delete(node)
        groups.node_gone(node)
        if cpu is not None:
            cpu.node_gone(node)
        annotated.on_delete(node)
        core.liveness.node_gone(node["metadata"]["name"])
        core.locks.on_node_deleted(node["metadata"]["name"])

    pod_informer = Informer(
        connections.api,
        "/api/v1/pods",
        on_upsert=pod_seen,
        on_delete=pod_gone,
        trim=trimmed_pod,
        bulkhead=core.instruments.bulkhead,
    )
    quota_informer = Informer(
        connections.api,
        "/api/v1/resourcequotas",
        on_upsert=quotas.on_upsert,
        on_delete=quotas.on_delete,
        bulkhead=core.instruments.bulkhead,
    )
    return Watches(
        pods=pods,
        nodes=nodes,
        annotated=annotated,
        node_sync=node_sync,
        node_groups=groups,
        quotas=quotas,
        unmatched_cordons=unmatched,
        pod_informer=pod_informer,
        node_informer=Informer(
            connections.api,
            "/api/v1/nodes",
            on_upsert=node_seen,
            on_delete=node_gone,
            trim=trimmed_node,
            bulkhead=core.instruments.bulkhead,
        ),
        quota_informer=quota_informer,
        holders=holders,
        ended_waits=ended_waits,
        templates=templates,
        template_informer=template_informer,
    )


def _cordon_of(node: JsonMapping) -> frozenset[str]:
    return frozenset(decode_cordon(annotations_of(node).get(DEVICE_CORDON, "")))
