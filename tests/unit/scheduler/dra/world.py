"""A cluster in memory: claims as an API server keeps them, the ledger, and the lead over both.

Any call to the ledger or the API server may be the last one of a replica (`die_at`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from hami_scheduler.deferred import DeferredWrites
from hami_scheduler.dra.candidates import Candidates
from hami_scheduler.dra.claim_status import ClaimStatus
from hami_scheduler.dra.grants import ClaimGrants
from hami_scheduler.dra.lead import ClaimLead
from hami_scheduler.dra.placing import ClaimPlacing
from hami_scheduler.dra.turns import Turns
from hami_scheduler.dra.waiting import WaitingClaims
from hami_scheduler.ledger.reservations.early import EarlyReservations
from hami_scheduler.ledger.state_machine import facts_of, verdict
from hami_scheduler.ledger.transitions import Transitions
from hami_scheduler.ledger.view import LedgerSnapshotCache
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.placement.decisions.decision_log import DecisionQueue
from hami_scheduler.placement.pod_requests import PodRequests
from hami_scheduler.placement.reserve import Reservations
from hami_scheduler.pod_events import Announcer
from hami_scheduler.ports import DecisionRow
from hamicommon import device_config
from hamicommon.domain.allocations import Allocation
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid, NodeName, PodUid
from hamicommon.domain.requests import Policy
from hamicommon.dra.devices import LEDGER_TAINT
from hamicommon.errors import Conflict, NotFound
from hamicommon.k8s.types import Json
from hamicommon.ledger.model import Change, Entry, StateStep
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.testing.pods import FakeGrantAnnouncer, FakePodApi, FakePodEvents
from hamicommon.vendors.registry import Vendors

from tests.unit.scheduler.readable_ledger import ReadableLedger

VENDORS = Vendors.from_config(device_config.load(None))
CARD_MIB = 8192
HOLD_S = 30.0


class Died(Exception):
    """The replica was killed."""


class Calls:
    """Counts what a replica does outside of itself; it dies at the call of that number."""

    def __init__(self) -> None:
        self.made = 0
        self.die_at: int | None = None

    def one(self) -> None:
        self.made += 1
        if self.die_at is not None and self.made >= self.die_at:
            raise Died


class CountedLedger(ReadableLedger):
    """Of some nodes with two cards each, that are read back for the view."""

    def __init__(self, calls: Calls, nodes: Sequence[str]) -> None:
        super().__init__()
        self._calls = calls
        self.places: dict[GpuUuid, NodeName] = {}
        for node in nodes:
            for index in range(2):
                uuid = GpuUuid(f"GPU-{node}-{index}")
                self.places[uuid] = NodeName(node)
                self.add_card(
                    NodeName(node),
                    GpuDevice(
                        uuid=uuid,
                        index=index,
                        vendor="NVIDIA",
                        type="NVIDIA A100",
                        slots=4,
                        memory_mib=CARD_MIB,
                        core_percent=100,
                    ),
                )

    async def enter(self, entry: Entry) -> Change:
        self._calls.one()
        change = await super().enter(entry)
        self._calls.one()
        return change

    async def advance(self, step: StateStep) -> Change | None:
        self._calls.one()
        change = await super().advance(step)
        self._calls.one()
        return change

    def used_mib(self) -> int:
        return sum(self.usage(uuid).used_memory_mib for uuid in self.places)


class Claims:
    """Port ClaimWriter."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._version = 0
        self.kept: dict[tuple[str, str], Json] = {}
        self.watcher: WaitingClaims | None = None
        self.writes = 0

    def put(self, claim: Json) -> Json:
        self._version += 1
        metadata = claim["metadata"] | {"resourceVersion": str(self._version)}
        new = {**claim, "metadata": metadata}
        key = metadata["namespace"], metadata["name"]
        old = self.kept.get(key)
        self.kept[key] = new
        if self.watcher is not None:
            self.watcher.claim_seen(new, old)
        return new

    def _current(self, claim: Json) -> Json:
        metadata = claim["metadata"]
        now = self.kept.get((metadata["namespace"], metadata["name"]))
        if now is None:
            raise NotFound("claim not found")
        if now["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
            raise Conflict("claim has changed")
        return now

    async def protect(self, claim: Json) -> Json:
        now = self._current(claim)
        if now["metadata"].get("finalizers"):
            return now
        self._calls.one()
        self.writes += 1
        made = self.put({**now, "metadata": now["metadata"] | {"finalizers": ["protection"]}})
        self._calls.one()
        return made

    async def set_status(self, claim: Json, status: Json) -> Json:
        self._calls.one()
        now = self._current(claim)
        merged = {**now.get("status", {}), **status}
        self.writes += 1
        made = self.put({**now, "status": {k: v for k, v in merged.items() if v is not None}})
        self._calls.one()
        return made


class NoLocks:
    """Nobody waits for Allocate of a claim's pod."""

    async def release(self, allocation: Allocation) -> None:
        del allocation


class NoLog:
    """Decisions that nobody reads."""

    async def record(self, decisions: Sequence[DecisionRow]) -> None:
        del decisions


class World:
    """Nodes n1, n2, ... of two cards, claims, and one replica at a time."""

    def __init__(self, *nodes: str) -> None:
        self.calls = Calls()
        self.ledger = CountedLedger(self.calls, nodes)
        self.claims = Claims(self.calls)
        self.events = FakePodEvents()
        self.pods: dict[PodUid, Json] = {}
        self.nodes = {("", name): {"metadata": {"name": name}, "spec": {}} for name in nodes}
        self.slices = {("", name): _slice(name) for name in nodes}
        self.now = 0.0
        self.waiting = WaitingClaims()
        self.lead = self._start()

    def _start(self) -> ClaimLead:
        self.waiting = self.claims.watcher = WaitingClaims(claims=self.claims.kept)
        instruments = SchedulerInstruments()
        announcer = Announcer(self.events)
        view = LedgerSnapshotCache(self.ledger, VENDORS.rules)
        requests = PodRequests(vendors=VENDORS, defaults=Policy())
        recorder = DecisionQueue(
            NoLog(),  # type: ignore[arg-type]  # the rest is unused
            announcer,
            calm=DeferredWrites().calm,
        )
        early = EarlyReservations(
            self.ledger,
            view,
            rules=VENDORS.rules,
            has_quota=lambda namespace: False,
            has_agent=lambda node: True,
            on_freed=lambda: None,
            instruments=instruments,
            enabled=False,
        )
        reservations = Reservations(
            view=view,
            store=self.ledger,
            pods=FakePodApi(),
            requests=requests,
            reservation_s=3 * HOLD_S,
            recorder=recorder,
            instruments=instruments,
            early=early,
        )
        placing = ClaimPlacing(
            view=view,
            reservations=reservations,
            requests=requests,
            recorder=recorder,
            announcer=announcer,
            instruments=instruments,
            pods=FakePodApi(),
            silent=frozenset,
        )
        self.transitions = Transitions(
            store=self.ledger,
            locks=NoLocks(),  # type: ignore[arg-type]  # all that is asked of them
            announcer=announcer,
            grants=FakeGrantAnnouncer(),
            view=view,
            instruments=instruments,
            release_unconfirmed_s=60,
            on_freed=lambda: self.lead.freed(),
        )
        return ClaimLead(
            waiting=self.waiting,
            candidates=Candidates(slices=self.slices, nodes=self.nodes, clock=lambda: self.now),
            synced=lambda: True,
            status=ClaimStatus(self.claims, self.waiting),
            grants=ClaimGrants(self.ledger, self.transitions),
            placing=placing,
            turns=Turns(HOLD_S, lambda: self.now),
            bulkhead=Bulkhead(),
        )

    def restart(self) -> None:
        """Another replica, that lists everything."""
        self.calls.die_at = None
        self.lead = self._start()
        for pod in self.pods.values():
            self.waiting.pod_seen(pod)

    async def settle(self) -> None:
        """Until nothing is due, with all pauses of the lead over."""
        for _ in range(12):
            await self.lead.once()
            self.now += 1.0
            await asyncio.sleep(0)

    def claim(self, name: str, *, mib: int = 4096, **spec: Any) -> Json:
        exactly = {
            "deviceClassName": "gpu.hami.io",
            "capacity": {"requests": {"memory": f"{mib}Mi", "cores": "10"}},
            **spec,
        }
        return self.claims.put(
            {
                "metadata": {"namespace": "ns", "name": name, "uid": f"uid-{name}"},
                "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
            }
        )

    def pod(
        self, name: str, *claims: str, annotations: dict[str, str] | None = None, **spec: Any
    ) -> PodUid:
        """A pod of these claims, or of one of its own name."""
        named = claims or (name,)
        pod = {
            "metadata": {
                "namespace": "ns",
                "name": name,
                "uid": f"pod-{name}",
                "creationTimestamp": f"{time.time()}",
                "annotations": annotations or {},
            },
            "spec": {
                "resourceClaims": [{"name": n, "resourceClaimName": n} for n in named],
                "containers": [
                    {"name": "cuda", "resources": {"claims": [{"name": n} for n in named]}}
                ],
                **spec,
            },
        }
        uid = PodUid(f"pod-{name}")
        self.pods[uid] = pod
        self.waiting.pod_seen(pod)
        return uid

    async def bound(self, uid: PodUid, node: str) -> None:
        """kube-scheduler binds the pod; the pod watch finds it."""
        pod = self.pods[uid]
        self.pods[uid] = {**pod, "spec": pod["spec"] | {"nodeName": node}}
        self.waiting.pod_seen(self.pods[uid])
        live = await self.ledger.live_of(uid)
        assert live is not None
        step = verdict(live, facts_of(self.pods[uid]))
        assert step is not None
        await self.transitions.apply(live, step, actor="pod-watch")

    def taken_away(self, name: str) -> None:
        """kube-scheduler clears the claim."""
        claim = self.claims.kept["ns", name]
        self.claims.put({k: v for k, v in claim.items() if k != "status"})

    def allocation(self, name: str) -> Json:
        found: Json = self.claims.kept["ns", name].get("status", {}).get("allocation") or {}
        return found

    def node_of(self, name: str) -> str:
        """By the claim."""
        [term] = self.allocation(name)["nodeSelector"]["nodeSelectorTerms"]
        [field] = term["matchFields"]
        [node] = field["values"]
        return str(node)

    async def live(self, uid: PodUid) -> Allocation:
        found = await self.ledger.live_of(uid)
        assert found is not None
        return found

    async def check(self) -> None:
        """Every allocation is of a live grant, and every live grant is allocated."""
        granted = {}
        for row in await self.ledger.live():
            for container in row.containers:
                for share in container.shares:
                    granted[row.pod_uid, share.uuid] = share.memory_mib
        written = {}
        for claim in self.claims.kept.values():
            status = claim.get("status") or {}
            for result in (status.get("allocation") or {}).get("devices", {}).get("results", []):
                [holder] = status["reservedFor"]
                [uuid] = [u for u in self.ledger.places if u.lower() == result["device"]]
                memory = result["consumedCapacity"]["memory"]
                assert (holder["uid"], uuid) not in written
                written[holder["uid"], uuid] = int(memory.removesuffix("Mi"))
        assert written == granted
        assert self.ledger.used_mib() == sum(granted.values())


def _slice(name: str) -> Json:
    device = {"name": "gpu", "taints": [{"key": LEDGER_TAINT}]}
    return {"spec": {"nodeName": name, "pool": {"name": name}, "devices": [device]}}
