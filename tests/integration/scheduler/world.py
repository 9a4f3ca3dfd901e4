"""Replicas of the scheduler, and their environment.

The tests play kube-scheduler (HTTP) and the node-agents (the bus).
"""

import asyncio
import contextlib
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
from hami_scheduler.api.app import Service, create_app
from hami_scheduler.bootstrap.loops import running
from hami_scheduler.bootstrap.use_cases import open_service
from hami_scheduler.settings import Settings
from hamicommon import events
from hamicommon.bus.client import Bus
from hamicommon.bus.connecting import open_bus
from hamicommon.bus.permissions import agent_user
from hamicommon.domain.ids import NodeName
from hamicommon.errors import NotFound
from hamicommon.grants.grant import Grant
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.types import Json
from hamicommon.ledger.database import Database

from tests.waiting import PATIENCE_S, eventually

GIB = 1024
REPORT_INTERVAL_S = 5.0
"""Interval of card reports until every replica has them."""


@dataclass
class Replica:
    """One scheduler process's worth of objects, reached over HTTP."""

    service: Service
    http: httpx.AsyncClient

    async def filter(self, pod: Json, *nodes: str) -> Json:
        answer = await self.http.post("/filter", json={"pod": pod, "nodenames": list(nodes)})
        assert answer.status_code == 200
        return dict(answer.json())

    async def bind(self, pod: Json, node: str) -> str:
        metadata = pod["metadata"]
        answer = await self.http.post(
            "/bind",
            json={
                "podName": metadata["name"],
                "podNamespace": metadata["namespace"],
                "podUID": metadata["uid"],
                "node": node,
            },
        )
        assert answer.status_code == 200
        return str(answer.json()["Error"])

    def cards(self, node: str) -> list[str]:
        """Uuids of the node's cards on which the replica places pods, in order."""
        cluster = self.service.adopter.view.cluster
        return [card.usage.device.uuid for card in cluster.cards(NodeName(node))]

    def phase(self, pod: Json) -> str | None:
        """Return the pod's phase in the replica's watch; None if it has not seen the pod."""
        seen = self.service.adopter.known_pods.get(pod["metadata"]["uid"], {})
        return (seen.get("status") or {}).get("phase")

    async def get(self, path: str) -> Json:
        answer = await self.http.get(path)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


@dataclass
class World:
    """Everything around the scheduler."""

    api: KubeApi
    bus: Bus
    database: Database
    settings: Settings
    stack: AsyncExitStack
    agent_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    sequence: int = 0
    replicas: list[Replica] = field(default_factory=list)
    """Running replicas."""
    asked: set[str] = field(default_factory=set)
    """Nodes whose agent was asked whether it can take a pod."""
    unready: set[str] = field(default_factory=set)
    """Nodes whose agent answers that it can't."""
    late: set[str] = field(default_factory=set)
    """Nodes whose containers get their slices only when they start."""
    offered: dict[str, Grant] = field(default_factory=dict)
    """Grants that agents were offered, by pod uid."""

    async def answer_readiness(self, subject: str, body: bytes) -> events.Readiness:
        """The answer of any node's agent: it is ready, except on the nodes in `unready`."""
        del subject
        asked = events.ReadinessRequest.model_validate_json(body)
        node = asked.node
        self.asked.add(node)
        if node in self.unready:
            return events.Readiness(node=node, ready=False, reason="the kubelet is away")
        if asked.grant is not None:
            self.offered[asked.grant.pod_uid] = asked.grant
        taken = asked.grant is not None
        return events.Readiness(node=node, ready=True, taken=taken, late=node in self.late)

    async def ask(self, node: str, subject: str, request: events.Payload) -> bytes:
        """The scheduler's answer to a node's agent."""
        async with open_bus(self.settings.nats, agent_user(node)) as bus:
            return await bus.request(subject, request, timeout_s=20)

    async def replica(self, **changes: Any) -> Replica:
        """Start a replica and wait until it is ready."""
        settings = self.settings.model_copy(update=changes)
        service = await self.stack.enter_async_context(open_service(settings))
        await self.stack.enter_async_context(running(service.loops))
        http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=create_app(service, probes=True)),
            base_url="http://scheduler",
            timeout=PATIENCE_S,
        )
        await self.stack.enter_async_context(http)
        replica = Replica(service, http)
        self.replicas.append(replica)
        self.stack.callback(self.replicas.remove, replica)

        async def ready() -> bool:
            return (await http.get("/readyz")).status_code == 200

        await eventually(ready, "the replica to be ready")
        return replica

    async def replica_with_card(self, **changes: Any) -> tuple[Replica, str]:
        """Start a replica and add the node n1; returns both the replica and the node's card."""
        replica = await self.replica(**changes)
        [card] = await self.add_node("n1")
        return replica, card

    async def reserved_pod(self, replica: Replica) -> Json:
        """Create a pod for which the replica holds a slice of n1."""
        pod = await self.pod("slice")
        await replica.filter(pod, "n1")
        return pod

    async def bound_pod(self, replica: Replica) -> Json:
        """Create a pod that the replica binds to n1."""
        pod = await self.reserved_pod(replica)
        assert await replica.bind(pod, "n1") == ""
        return pod

    async def add_node(self, name: str, *, cards: int = 1, **card: Any) -> list[str]:
        """A Node object whose cards every replica knows; returns their uuids."""
        with contextlib.suppress(NotFound):
            await self.api.delete(f"/api/v1/nodes/{name}")
        await self.api.create("/api/v1/nodes", {"metadata": {"name": name}})
        uuids = [f"GPU-{name}-{index}" for index in range(cards)]
        devices = [inventory_device(u, i, **card) for i, u in enumerate(uuids)]
        again_at = 0.0

        async def is_known() -> bool:
            # As an agent repeats it: that a node of this name was deleted may be seen later.
            nonlocal again_at
            now = asyncio.get_running_loop().time()
            if now >= again_at:
                await self.report(name, *devices)
                again_at = now + REPORT_INTERVAL_S
            rows = await self.database.fetch(
                "SELECT 1 FROM devices WHERE node = $1 AND present", name
            )
            return len(rows) == cards and all(
                replica.cards(name) == uuids for replica in self.replicas
            )

        await eventually(is_known, f"the cards of {name}")
        return uuids

    async def report(
        self,
        name: str,
        *devices: events.InventoryDevice,
        agent_id: str = "",
        clock_ahead: timedelta = timedelta(),
    ) -> None:
        """An inventory as the node's agent sends it."""
        self.sequence += 1
        inventory = events.Inventory(
            node=name,
            agent_id=agent_id or self.agent_id,
            sequence=self.sequence,
            observed_at=datetime.now(UTC) + clock_ahead,
            devices=devices,
        )
        await self.bus.publish(
            events.inventory_subject(name), inventory, message_id=uuid.uuid4().hex
        )

    async def publish_report(
        self, kind: type[events.ReportBase], grant: Json, **fields: Any
    ) -> None:
        """Publish a report of the grant's node; `grant` is a row of /v1/allocations."""
        report = kind(
            report_id=uuid.uuid4().hex,
            node=grant["node"],
            allocation_id=grant["id"],
            pod_uid=grant["pod_uid"],
            token=grant["token"],
            at=datetime.now(UTC),
            **fields,
        )
        subject = events.reports_subject(grant["node"])
        await self.bus.publish(subject, report, message_id=report.report_id)

    async def pod(
        self,
        name: str,
        *,
        memory_mib: int = GIB,
        cores: int = 0,
        limits: Json | None = None,
        **meta: Any,
    ) -> Json:
        """Create a pod that requests one slice (or `limits`) at the API server."""
        limits = limits or {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(memory_mib)}
        if cores:
            limits["nvidia.com/gpucores"] = str(cores)
        return await self.api.create(
            "/api/v1/namespaces/default/pods",
            {
                "metadata": {"name": f"{name}-{uuid.uuid4().hex[:6]}", **meta},
                "spec": {
                    "schedulerName": "hami-scheduler",
                    "containers": [
                        {"name": "main", "image": "none", "resources": {"limits": limits}}
                    ],
                },
            },
        )

    async def read(self, pod: Json) -> Json:
        return await self.api.get(_path(pod))

    async def set_status(self, pod: Json, **status: Any) -> None:
        await self.api.patch(f"{_path(pod)}/status", {"status": status})

    async def delete(self, pod: Json) -> None:
        """Remove the object immediately, as the kubelet does when the pod has ended."""
        await self.api.delete(_path(pod), {"gracePeriodSeconds": 0})

    async def rows(self, pod: Json) -> list[Json]:
        """All allocations of the pod, oldest first."""
        found = await self.database.fetch(
            "SELECT id::text AS id, pod_uid, node, state, token, attempt, reason FROM allocations"
            " WHERE pod_uid = $1 ORDER BY attempt",
            pod["metadata"]["uid"],
        )
        return [dict(row) for row in found]

    async def until(self, pod: Json, *states: str) -> Json:
        """Wait until the pod's latest allocation is in one of the states."""

        async def row_in_states() -> Json | None:
            rows = await self.rows(pod)
            return rows[-1] if rows and rows[-1]["state"] in states else None

        return await eventually(row_in_states, f"{pod['metadata']['name']} to be {states}")

    async def until_labelled(self, pod: Json, node: str) -> None:
        """Wait for the label, which is written some time after the binding."""

        async def is_labelled() -> bool:
            labels = (await self.read(pod))["metadata"].get("labels") or {}
            return bool(labels == {"hami.io/vgpu-node": node})

        await eventually(is_labelled, f"{pod['metadata']['name']} to be labelled")

    async def used_amounts(self, card: str) -> tuple[int, int, int]:
        row = await self.database.fetchrow(
            "SELECT used_slots, used_memory_mib, used_core_percent FROM devices WHERE uuid = $1",
            card,
        )
        return tuple(row)


def _path(pod: Json) -> str:
    metadata = pod["metadata"]
    return f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"


def inventory_device(card: str, index: int, **changes: Any) -> events.InventoryDevice:
    values = {
        "uuid": card,
        "index": index,
        "vendor": "NVIDIA",
        "type": "NVIDIA A100-SXM4-80GB",
        "slots": 10,
        "memory_mib": 80 * GIB,
        "core_percent": 100,
        **changes,
    }
    return events.InventoryDevice(**values)
