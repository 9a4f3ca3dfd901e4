"""Informers of the API server's objects, and the handlers of each kind."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from hamicommon.domain.ids import NodeName
from hamicommon.dra.shapes import TEMPLATE_LABELS, templates_path
from hamicommon.k8s.annotations import DEVICE_CORDON, split_list
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.informer import Informer

from hami_scheduler.activity import SchedulerLease
from hami_scheduler.adoption.resource_claims import ClaimHolders
from hami_scheduler.bootstrap.core import Core
from hami_scheduler.bus.inventories import InventoryReports
from hami_scheduler.drift import NodeProblems
from hami_scheduler.kueue.watch import KueueWatch
from hami_scheduler.ledger.quota import quota_limits
from hami_scheduler.placement.groups import GroupPlans
from hami_scheduler.reconcile.ended_waits import EndedWaits
from hami_scheduler.settings import Settings
from hami_scheduler.watch.annotated_nodes import AnnotatedNodes
from hami_scheduler.watch.claim_templates import ClaimTemplates, card_sizes_mib
from hami_scheduler.watch.host_cpu import HostCpu
from hami_scheduler.watch.node_annotations import lives
from hami_scheduler.watch.nodes import CORDON_CLASS, NodeSync
from hami_scheduler.watch.pods import PodWatch
from hami_scheduler.watch.quotas import QuotaSync
from hami_scheduler.watch.trim import trimmed_node, trimmed_pod

LEASES = "/apis/coordination.k8s.io/v1/namespaces"
MAX_LEASE_BACKOFF_S = 1.0
"""Well within the Lease's duration: one that is not seen counts as one that is not renewed."""


def lease_informer(settings: Settings, api: KubeApi, lease: SchedulerLease) -> Informer:
    """Return the informer that shows `lease` the object."""
    return Informer(
        api,
        f"{LEASES}/{settings.lease_namespace}/leases",
        on_upsert=lease.on_upsert,
        on_delete=lease.on_delete,
        max_backoff_s=MAX_LEASE_BACKOFF_S,
        fieldSelector=f"metadata.name={settings.lease_name}",
    )


class Watches:
    """The informers and their handlers, and the inventories that agents report beside them."""

    def __init__(self, core: Core) -> None:
        self._core = core
        settings, connections, bulkhead = core.settings, core.connections, core.bulkhead
        api, inventory = connections.api, connections.inventory
        self.inventories = InventoryReports(
            store=inventory,
            view=core.state,
            refused=core.refused,
            drift=core.drift,
            instruments=core.instruments,
            on_report=core.liveness.on_message,
            on_written=self._on_cards_written,
        )
        self.pods = PodWatch(
            store=connections.store,
            transitions=core.transitions,
            state=core.state,
            waiting=core.demand.waiting,
            request_of=core.requests.of,
            scheduler_name=settings.scheduler_name,
            bulkhead=bulkhead,
        )
        self.unmatched_cordons = NodeProblems(
            kind=CORDON_CLASS, drift=core.drift, prefix=f"annotation {DEVICE_CORDON}: "
        )
        self.nodes = NodeSync(
            store=inventory,
            view=core.state,
            group_labels=split_list(settings.node_group_labels),
            unmatched=self.unmatched_cordons,
            events=connections.events,
            on_gone=self.inventories.forget,
            on_freed=core.on_freed,
            bulkhead=bulkhead,
        )
        self.annotated = AnnotatedNodes(
            store=inventory,
            view=core.state,
            nodes=connections.nodes,
            refused=core.refused,
            malformed=NodeProblems(
                kind="inventory-malformed",
                drift=core.drift,
                on_count=core.instruments.malformed_inventories.set,
            ),
            on_written=lambda node: self._on_cards_written([node]),
            locks=core.mirrored,
            vendors=core.vendors,
            bulkhead=bulkhead,
        )
        self.quotas = QuotaSync(
            store=connections.quotas,
            limits_of=lambda quota: quota_limits(quota, core.vendors),
            synced=lambda: self.quota_informer.synced.is_set(),
            on_written=self._on_quotas_written,
            bulkhead=bulkhead,
        )
        self.ended_waits = EndedWaits(
            connections.decisions,
            pods=lambda: self.pod_informer.store.values(),
            listed=lambda: self.pod_informer.synced.is_set(),
        )
        self._cpu = HostCpu(core.state.cluster.set_free_cpu) if settings.host_cpu_in_score else None
        informer = partial(Informer, api, bulkhead=bulkhead)
        self.pod_informer = informer(
            "/api/v1/pods",
            on_upsert=self._on_pod,
            on_delete=self._on_pod_deleted,
            trim=trimmed_pod,
        )
        node_informer = informer(
            "/api/v1/nodes",
            on_upsert=self._on_node,
            on_delete=self._on_node_deleted,
            trim=trimmed_node,
        )
        self.quota_informer = informer(
            "/api/v1/resourcequotas",
            on_upsert=self.quotas.on_upsert,
            on_delete=self.quotas.on_delete,
        )
        self.informers = {
            "pods": self.pod_informer,
            "nodes": node_informer,
            "quotas": self.quota_informer,
        }
        self.templates: ClaimTemplates | None = None
        if settings.claim_templates == "on":
            # Limits may become claims.
            self.templates = ClaimTemplates(
                connections.templates,
                card_sizes_mib=lambda: card_sizes_mib(core.state.cluster.models),
                bulkhead=bulkhead,
            )
            self.informers["templates"] = informer(
                templates_path(),
                on_upsert=self.templates.template_seen,
                on_delete=self.templates.template_gone,
                labelSelector=",".join(f"{key}={value}" for key, value in TEMPLATE_LABELS.items()),
            )

        self.kueue: KueueWatch | None = None
        if settings.kueue == "on":
            self.kueue = KueueWatch(informer)
            self.informers |= self.kueue.informers

    def missing(self) -> dict[str, str]:
        """Informers that have not listed yet."""
        return {
            name: "the API server has not been listed yet"
            for name in ("pods", "nodes")
            if not self.informers[name].synced.is_set()
        }

    def _on_cards_written(self, nodes: Iterable[NodeName]) -> None:
        self.nodes.on_cards_written(nodes)
        self._core.on_freed()

    async def _on_quotas_written(self) -> None:
        await self._core.state.refresh_quotas()
        self._core.on_freed()

    def _on_pod(self, new: dict[str, Any], old: dict[str, Any] | None) -> None:
        self.pods.on_upsert(new, old)
        for each in self._pod_followers():
            each.pod_seen(new)

    def _on_pod_deleted(self, pod: dict[str, Any]) -> None:
        self.pods.on_delete(pod)
        self.ended_waits.on_delete(pod)
        for each in self._pod_followers():
            each.pod_gone(pod)

    def _pod_followers(self) -> list[ClaimHolders | ClaimTemplates | GroupPlans | HostCpu]:
        groups = None if self._core.settings.groups == "off" else self._core.groups
        followers = (self._core.claim_holders, self.templates, groups, self._cpu)
        return [each for each in followers if each is not None]

    def _on_node(self, new: dict[str, Any], old: dict[str, Any] | None) -> None:
        if old is None:
            self._core.expected.on_new(new)
        if self._cpu is not None:
            self._cpu.node_seen(new)
        self.nodes.on_upsert(new)
        self.annotated.on_upsert(new, old)
        self._core.liveness.node_seen(new["metadata"]["name"], lives(new, self._core.vendors))

    def _on_node_deleted(self, node: dict[str, Any]) -> None:
        self.nodes.on_delete(node)
        if self._cpu is not None:
            self._cpu.node_gone(node)
        self.annotated.on_delete(node)
        self._core.liveness.node_gone(node["metadata"]["name"])
        self._core.locks.on_node_deleted(node["metadata"]["name"])
