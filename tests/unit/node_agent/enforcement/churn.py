"""A node's day: containers, processes and allocations as the driver, /proc and regions show them.

Honest containers do what libvgpu allows (docs/libvgpu.md): a block is refused if blocks and
overhead would exceed the limit; contexts and modules are charged beyond it. The card's memory is
rounded to granules, frees of busy streams reach it late, and the library measures its overhead when
a context or a module is added. Times are seconds of the day.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

from hami_node_agent.devices.processes import CardProcesses, HostProcess
from hami_node_agent.enforcement.judgement import (
    ContainerKey,
    LimitKey,
    Resolver,
    Tolerance,
    judge,
    limits_of,
    view_of,
)
from hami_node_agent.enforcement.periods import Standing, Timing, advance
from hami_node_agent.grants.records import PodsSeen, Record
from hami_node_agent.usage.monitor import Container, ContainerUse, MonitorLook, Owner
from hami_node_agent.usage.regions.accounting import (
    Evidence,
    Region,
    RegionCard,
    RegionHeld,
    RegionProcess,
)
from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.ids import AllocationId, GpuUuid, PodUid
from hamicommon.domain.pod_ref import PodRef

MIB = 1024 * 1024
GRANULE = 2 * MIB
CARDS = tuple(GpuUuid(f"GPU-{number}") for number in range(8))
MIG_CARD = CARDS[7]
"""A card whose driver reports no memory of processes."""
LOOK_S = 5.0
STATUS_LAG_S = 3.0
"""The kubelet reports a container's id so long after its start, at most."""
PIDS = 4000
"""Few, so that they are used again."""


@dataclass(slots=True, kw_only=True)
class Process:
    """One process of a container on one card."""

    pid: int
    inner: int
    started: int
    context_bytes: int
    slot_at: float
    """When its region has it; the driver may list it before."""
    blocks: list[int] = field(default_factory=list)
    modules_bytes: int = 0
    stated_bytes: int = 0
    """Bytes that the library charged for contexts and modules at its last look."""
    late_frees: list[tuple[float, int]] = field(default_factory=list)
    """(when it reaches the card, bytes): no longer charged."""
    lists_until: float = float("inf")
    """Dead, and still in the driver's list."""

    def on_card(self, now: float) -> int:
        """Bytes that the driver reports."""
        small = sum(size for size in self.blocks if size < MIB)
        large = sum(-(-size // GRANULE) * GRANULE for size in self.blocks if size >= MIB)
        late = sum(size for when, size in self.late_frees if when > now)
        return (
            self.context_bytes + self.modules_bytes + large + -(-small // GRANULE) * GRANULE + late
        )

    def look_at_overhead(self, now: float) -> None:
        """Measure the driver's memory beyond the blocks, as `overhead.c` does."""
        self.stated_bytes = max(0, self.on_card(now) - sum(self.blocks))


@dataclass(slots=True, kw_only=True)
class Tenant:
    """One container of one pod."""

    key: ContainerKey
    card: GpuUuid
    limit_bytes: int
    container_id: str
    id_known_at: float
    record: Record | None
    namespace: str = "default"
    processes: list[Process] = field(default_factory=list)
    ended_at: float | None = None
    hostile: str = ""
    hostile_since: float = 0.0

    @property
    def charged(self) -> int:
        """Return the amount that the library counts."""
        return sum(sum(each.blocks) + each.stated_bytes for each in self.processes)


class Day:
    """The node, and the checker's decisions on it."""

    def __init__(self, seed: int, *, tenants: int = 40) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.changes = 0
        """Allocations, frees, starts and ends so far."""
        self._wanted = tenants
        self._made = 0
        self.tenants: list[Tenant] = []
        self.host: list[Process] = []
        self._used_pids: set[int] = set()
        self._timing = Timing()
        self.standings: dict[LimitKey, Standing] = {}
        self._unresolved: dict[tuple[str, int], int] = {}
        self.found: dict[LimitKey, tuple[str, float]] = {}
        """Every violation that was ever shown, and when."""

    # What pods do.

    def step(self, actions: int) -> None:
        """Do actions of the node's pods, spread over the time until the next look."""
        end = self.now + LOOK_S * self.random.uniform(1.0, 1.2)
        moments = sorted(self.random.uniform(self.now, end) for _ in range(actions))
        for self.now in moments:
            self._act()
        self.now = end
        self._tidy()

    def _act(self) -> None:
        self.changes += 1
        honest = [each for each in self.tenants if each.ended_at is None and not each.hostile]
        if len(honest) < self._wanted or self.random.random() < 0.01:
            self.tenants.append(self.tenant())
            return
        tenant = self.random.choice(honest)
        kind = self.random.random()
        if not tenant.processes or (kind < 0.04 and tenant.charged < tenant.limit_bytes):
            # A program that is shown a full card does not begin on it.
            self.begin(tenant)
        elif kind < 0.07:
            self._end_process(tenant, self.random.choice(tenant.processes))
        elif kind < 0.085:
            self._end(tenant)
        elif kind < 0.12:
            process = self.random.choice(tenant.processes)
            more = self.random.randrange(300 * MIB)
            process.modules_bytes = min(process.modules_bytes + more, 500 * MIB)
            process.look_at_overhead(self.now)
        elif kind < 0.62:
            self._allocate(tenant)
        else:
            self._free(tenant)

    def tenant(self, *, granted: bool = True, namespace: str = "default") -> Tenant:
        """Another container, with its record if it is granted anything."""
        self._made += 1
        uid = f"00000000-0000-0000-0000-{self._made:012d}"
        card = self.random.choice(CARDS)
        limit_mib = self.random.choice((1024, 4096, 10_240, 40_960))
        record = self._record(uid, card, limit_mib) if granted else None
        return Tenant(
            key=ContainerKey(uid, "main"),
            card=card,
            limit_bytes=limit_mib * MIB,
            container_id=f"{self._made:064x}",
            id_known_at=self.now + self.random.uniform(0, STATUS_LAG_S),
            record=record,
            namespace=namespace,
        )

    def _record(self, uid: str, card: GpuUuid, limit_mib: int) -> Record:
        share = DeviceShare(uuid=card, vendor="NVIDIA", memory_mib=limit_mib, core_percent=10)
        return Record(
            nonce=uid,
            device_ids=frozenset({uid}),
            allocation_id=AllocationId(uid),
            pod_uid=PodUid(uid),
            namespace="default",
            pod_name=uid,
            container="main",
            role="app",
            token=1,
            shares=(share,),
            cache_dir=f"{uid}_main",
            mig_uuids=("MIG-x",) if card == MIG_CARD else (),
        )

    def begin(self, tenant: Tenant, *, slot: bool = True) -> Process:
        """A process with a context; some have a slot only seconds later."""
        late_s = self.random.choice((0.0, 0.0, 0.0, self.random.uniform(0, 4.0)))
        process = Process(
            pid=self._pid(),
            inner=self.random.randrange(1, 300),
            started=int(self.now * 100),
            context_bytes=self.random.randrange(150, 700) * MIB,
            slot_at=self.now + late_s if slot else float("inf"),
        )
        process.look_at_overhead(self.now)
        tenant.processes.append(process)
        return process

    def _pid(self) -> int:
        while True:
            pid = self.random.randrange(2, PIDS)
            if pid not in self._used_pids:
                self._used_pids.add(pid)
                return pid

    def _allocate(self, tenant: Tenant) -> None:
        process = self.random.choice(tenant.processes)
        for _ in range(self.random.choice((1, 1, 1, 20))):
            size = int(2 ** self.random.uniform(10, 33))
            if size > 32 * MIB:
                # Pools of frameworks ask for whole granules.
                size -= size % GRANULE
            if tenant.charged + size <= tenant.limit_bytes:
                process.blocks.append(size)

    def _free(self, tenant: Tenant) -> None:
        process = self.random.choice(tenant.processes)
        for _ in range(min(len(process.blocks), self.random.choice((1, 1, 20)))):
            size = process.blocks.pop(self.random.randrange(len(process.blocks)))
            if self.random.random() < 0.2:
                process.late_frees.append((self.now + self.random.uniform(0, 4.0), size))

    def _end_process(self, tenant: Tenant, process: Process) -> None:
        tenant.processes.remove(process)
        process.lists_until = self.now + self.random.choice((0.0, 0.0, 4.0))
        self.host.append(process)

    def _end(self, tenant: Tenant) -> None:
        """End the container's pod; its processes may end later."""
        tenant.ended_at = self.now
        for process in tenant.processes:
            process.lists_until = self.now + self.random.choice((0.0, 1.0, 60.0))

    def _tidy(self) -> None:
        self.host = [each for each in self.host if self._is_listed(each)]
        for tenant in self.tenants:
            if tenant.ended_at is not None:
                tenant.processes = [each for each in tenant.processes if self._is_listed(each)]
        self.tenants = [t for t in self.tenants if t.ended_at is None or t.processes]

    def _is_listed(self, process: Process) -> bool:
        if process.lists_until > self.now:
            return True
        self._used_pids.discard(process.pid)
        return False

    # What the agent sees.

    def look(self, *, hiccup: bool = False) -> None:
        """Inspect the node once, and decide. `hiccup`: the driver lists no process this time."""
        view = view_of(
            self._look(hiccup),
            resolver=Resolver(self, limits := self._limits(), frozenset({"kube-system"})),
            limits=limits,
            directories={},
            cards=CARDS,
            used_mib=lambda _card: None,
            before=self._unresolved,
        )
        self._unresolved = dict(view.unresolved)
        self.standings = advance(
            self.standings,
            judge(view.facts, Tolerance()),
            now_s=self.now,
            timing=self._timing,
            gone=frozenset[str](self.snapshot().ended),
        )
        for key, standing in self.standings.items():
            if standing.state is not None and standing.state.violates:
                self.found.setdefault(key, (str(standing.state), self.now))

    def restart(self) -> None:
        """Restart the agent; records on disk are kept."""
        self.standings, self._unresolved = {}, {}

    def _limits(self) -> dict[ContainerKey, dict[str, object]]:
        records = [each.record for each in self.tenants if each.record is not None]
        return limits_of(records, ended=self.snapshot().ended, controlled=True)  # type: ignore[return-value]

    def _look(self, hiccup: bool) -> MonitorLook:
        held: dict[str, dict[int, int | None]] = {card: {} for card in CARDS}
        living: dict[int, HostProcess] = {}
        seen: list[ContainerUse] = []
        for tenant in self.tenants:
            for process in tenant.processes:
                on_card = process.on_card(self.now) // MIB
                held[tenant.card][process.pid] = None if tenant.card == MIG_CARD else on_card
                living[process.pid] = self._in_proc(tenant, process)
            if tenant.record is not None and tenant.ended_at is None:
                seen.append(self._observe(tenant, tenant.record))
        for dead in self.host:
            held[CARDS[0]][dead.pid] = dead.context_bytes // MIB
        cards = {
            card: CardProcesses(pids=frozenset(by_pid), held_mib=by_pid)
            for card, by_pid in held.items()
        }
        return MonitorLook(
            seen=tuple(seen),
            evidence=Evidence(living=living, cards={} if hiccup else cards),
        )

    def _in_proc(self, tenant: Tenant, process: Process) -> HostProcess:
        return HostProcess(
            host_pid=process.pid,
            inner_pid=process.inner,
            started_ticks=process.started,
            pod_uid=tenant.key.pod_uid,
            container_id=tenant.container_id,
        )

    def _observe(self, tenant: Tenant, record: Record) -> ContainerUse:
        slots = [
            RegionProcess(
                pid=process.inner,
                host_pid=0,
                started_ticks=process.started,
                held=(
                    RegionHeld(
                        total_bytes=sum(process.blocks) + process.stated_bytes,
                        context_bytes=process.stated_bytes,
                    ),
                ),
            )
            for process in tenant.processes
            if process.slot_at <= self.now
        ]
        card = RegionCard(
            index=0, uuid=tenant.card, limit_bytes=tenant.limit_bytes, core_limit_percent=10
        )
        owner = Owner(
            pod=self._ref(tenant), container="main", record=record, cards=frozenset({tenant.card})
        )
        region = Region(cards=(card,), processes=tuple(slots))
        container = Container(directory=record.cache_dir, owner=owner, region=region)
        return ContainerUse(container=container, uses=())

    # The pods, as the watch has them.

    live = True

    def snapshot(self) -> PodsSeen:
        ended = (PodUid(t.key.pod_uid) for t in self.tenants if t.ended_at is not None)
        return PodsSeen(ended=frozenset(ended))

    def name_of(self, pod_uid: str) -> PodRef | None:
        return next((self._ref(t) for t in self.tenants if t.key.pod_uid == pod_uid), None)

    def api_uid(self, kubelet_uid: str) -> str:
        return kubelet_uid

    def container_of(self, container_id: str) -> tuple[str, str] | None:
        for tenant in self.tenants:
            if tenant.container_id == container_id and tenant.id_known_at <= self.now:
                return tenant.key.pod_uid, tenant.key.container
        return None

    def _ref(self, tenant: Tenant) -> PodRef:
        return PodRef(
            uid=PodUid(tenant.key.pod_uid), namespace=tenant.namespace, name=tenant.key.pod_uid
        )

    # Hostile containers.

    def attackers(self) -> Iterator[Tenant]:
        """Begin one container per attack; yield each."""
        for way in ("no grant", "past the library", "beyond", "beyond, region made up"):
            tenant = self.tenant(granted=way != "no grant")
            while tenant.card == MIG_CARD:
                tenant = self.tenant(granted=way != "no grant")
            process = self.begin(tenant, slot=way.startswith("beyond"))
            process.slot_at = self.now if way.startswith("beyond") else float("inf")
            if way.startswith("beyond"):
                process.blocks.append(tenant.limit_bytes + 3 * GRANULE)
                process.stated_bytes = 0
            if way == "beyond, region made up":
                process.blocks[0] += 1024 * MIB
                process.stated_bytes = 2**45
            self.tenants.append(replace(tenant, hostile=way, hostile_since=self.now))
            yield self.tenants[-1]
