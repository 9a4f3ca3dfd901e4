"""Nodes that one process plays: kubelet and node-agent of each, over the real bus and the real API.

Inventories, readiness, grants, reports and pod statuses are real, in the order of a real node.
Containers are left out: a pod runs as soon as it is bound and its grant has arrived, and a pod that
is being deleted ends immediately.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import cast

from hamicommon import events
from hamicommon.bus.client import Bus, Message, Outgoing
from hamicommon.domain.ids import NodeName
from hamicommon.errors import Conflict, HamiError, NotFound
from hamicommon.grants.grant import Grant
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.informer import Informer
from hamicommon.k8s.types import Json

logger = logging.getLogger(__name__)


RESOURCE = "nvidia.com/gpu"
CARD_MIB = 81_920
SLOTS = 10
# Statuses written concurrently, as many kubelets would.
WRITERS = 16
# Inventories published together when the nodes are new; later they come in BEATS parts.
BATCH_SIZE = 100
BEATS = 50
RETRY_S = 1.0

Cards = Mapping[str, tuple[events.InventoryDevice, ...]]
"""By node."""


class PlayedNodes:
    """Nodes with these cards. `on_running` gets the uid of each pod that was reported to run.

    With `late` they bind late, so several pods may be on their way to one of them.
    """

    def __init__(
        self,
        api: KubeApi,
        bus: Bus,
        *,
        cards: Cards,
        late: bool = False,
        on_running: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._api = api
        self._bus = bus
        self._names = list(cards)
        self._devices = dict(cards)
        self._late = late
        self._on_running = on_running
        self._agent_id = uuid.uuid4().hex
        self._sequences: Counter[str] = Counter()
        self._grants: dict[str, Grant] = {}
        self._bound: dict[str, Json] = {}
        self._work: asyncio.Queue[Json] = asyncio.Queue()

    async def register(self) -> None:
        """Make the Node objects and publish their cards."""
        gate = asyncio.Semaphore(WRITERS)

        async def one(name: str) -> None:
            async with gate:
                slots = sum(card.slots for card in self._devices[name])
                await register_node(self._api, name, str(slots))

        await asyncio.gather(*map(one, self._names))
        for at in range(0, len(self._names), BATCH_SIZE):
            await self._publish_inventories(self._names[at : at + BATCH_SIZE])

    async def _publish_inventories(self, names: list[str]) -> None:
        errors = await self._bus.publish_all([self._inventory(name) for name in names])
        for error in filter(None, errors):
            raise error

    def _inventory(self, name: str) -> Outgoing:
        self._sequences[name] += 1
        inventory = events.Inventory(
            node=name,
            agent_id=self._agent_id,
            sequence=self._sequences[name],
            observed_at=datetime.now(UTC),
            devices=self._devices[name],
        )
        return Outgoing(
            subject=events.inventory_subject(name),
            data=inventory.model_dump_json().encode(),
            message_id=uuid.uuid4().hex,
        )

    async def run(self) -> None:
        """Play until cancelled."""
        informer = Informer(
            self._api, "/api/v1/pods", on_upsert=self._on_pod, on_delete=self._on_gone
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(informer.run())
            for _ in range(WRITERS):
                tasks.create_task(carry_out_all(self._work, self._carry_out))
            tasks.create_task(self._beat())
            tasks.create_task(self._bus.follow(["hami.grants.v1.*"], self._on_grant))
            subject = "hami.agents.readiness.*"
            tasks.create_task(self._bus.serve(subject, "played", self._on_readiness))

    async def _beat(self) -> None:
        """Every node once per `HEARTBEAT_S`, a part of them at a time, as nodes do."""
        parts = [self._names[number::BEATS] for number in range(BEATS)]
        while True:
            for names in parts:
                await asyncio.sleep(events.HEARTBEAT_S / BEATS)
                try:
                    await self._publish_inventories(names)
                except HamiError as exc:
                    logger.warning("inventories not published", extra={"error": str(exc)})

    async def _on_readiness(self, subject: str, body: bytes) -> events.Readiness:
        del subject
        asked = events.ReadinessRequest.model_validate_json(body)
        if asked.grant is not None:
            self._take(asked.grant)
        taken = asked.grant is not None
        return events.Readiness(node=asked.node, ready=True, taken=taken, late=self._late)

    async def _on_grant(self, message: Message) -> None:
        fact = events.GRANT_MESSAGE.validate_json(message.data)
        if isinstance(fact, events.GrantAnnounced):
            self._take(fact.grant)
        else:
            self._grants.pop(fact.pod_uid, None)

    def _take(self, grant: Grant) -> None:
        self._grants[grant.pod_uid] = grant
        self._meet(grant.pod_uid)

    def _on_pod(self, new: Json, old: Json | None) -> None:
        del old
        if not new["spec"].get("nodeName"):
            return
        uid = new["metadata"]["uid"]
        if new["metadata"].get("deletionTimestamp"):
            self._work.put_nowait(new)
        elif (new.get("status") or {}).get("phase") != "Running" and uid not in self._bound:
            self._bound[uid] = new
            self._meet(uid)

    def _on_gone(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        self._bound.pop(uid, None)
        if grant := self._grants.pop(uid, None):
            self._work.put_nowait({"gone": grant})

    def _meet(self, uid: str) -> None:
        """The kubelet admits a pod when it is bound, and the agent answers when it has a grant."""
        pod = self._bound.get(uid)
        if pod is not None and (uid in self._grants or not _wants_cards(pod)):
            self._work.put_nowait(pod)

    async def _carry_out(self, item: Json) -> None:
        if "gone" in item:
            await self._report(events.PodGone, cast(Grant, item["gone"]))
            return
        metadata = item["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        if metadata.get("deletionTimestamp"):
            await self._api.delete(path, {"gracePeriodSeconds": 0})
            return
        if grant := self._grants.get(metadata["uid"]):
            await self._report(events.Allocated, grant)
        await self._api.patch(f"{path}/status", {"status": running_status(item)})
        self._on_running(metadata["uid"])

    async def _report(self, kind: type[events.ReportBase], grant: Grant) -> None:
        report = kind(
            report_id=uuid.uuid4().hex,
            node=NodeName(grant.node),
            allocation_id=grant.allocation_id,
            pod_uid=grant.pod_uid,
            token=grant.token,
            at=datetime.now(UTC),
        )
        await self._bus.publish(
            events.reports_subject(grant.node), report, message_id=report.report_id
        )


async def carry_out_all(
    work: asyncio.Queue[Json], carry_out: Callable[[Json], Awaitable[None]]
) -> None:
    """Take items until cancelled; one that fails is tried again after RETRY_S.

    An object that is gone, or that another client changed, needs nothing any more.
    """
    while True:
        item = await work.get()
        try:
            await carry_out(item)
        except (NotFound, Conflict):
            continue
        except HamiError as exc:
            logger.warning("an item of a played node is retried", extra={"error": str(exc)})
            work.put_nowait(item)
            await asyncio.sleep(RETRY_S)


async def register_node(api: KubeApi, name: str, slots: str) -> None:
    """Make a Node object that is ready, with so many devices."""
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "500", RESOURCE: slots}
    status = {
        "capacity": amounts,
        "allocatable": amounts,
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
    }
    labels = {"kubernetes.io/hostname": name}
    await api.create("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
    await api.patch(f"/api/v1/nodes/{name}/status", {"status": status})
    # A cluster without a node controller leaves the taint of new nodes on.
    await api.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})


def equal_nodes(names: Iterable[str], *, cards: int, slots: int = SLOTS) -> Cards:
    """Return that many cards of one kind on each node."""
    return {
        name: tuple(
            events.InventoryDevice(
                uuid=card_uuid(name, index),
                index=index,
                vendor="NVIDIA",
                type="NVIDIA A100-SXM4-80GB",
                slots=slots,
                memory_mib=CARD_MIB,
                core_percent=100,
            )
            for index in range(cards)
        )
        for name in names
    }


def card_uuid(node: str, index: int) -> str:
    """The uuid of a played node's card."""
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{node}/{index}')}"


def _wants_cards(pod: Json) -> bool:
    limits = (container.get("resources", {}).get("limits", {}) for container in _containers(pod))
    return any(each.get(RESOURCE, "0") != "0" for each in limits)


def _containers(pod: Json) -> list[Json]:
    return list(pod["spec"]["containers"])


def running_status(pod: Json) -> Json:
    """Return the kubelet's report of a pod whose containers run."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kinds = ("Initialized", "ContainersReady", "Ready")
    return {
        "phase": "Running",
        "startTime": now,
        "conditions": [
            *((pod.get("status") or {}).get("conditions") or ()),
            *({"type": k, "status": "True", "lastTransitionTime": now} for k in kinds),
        ],
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": now}},
                "containerID": f"played://{uuid.uuid4().hex}",
            }
            for container in _containers(pod)
        ],
    }
