"""Judge each container on each card at one moment; `periods.py` adds time. Pure.

Input: the monitor's look, the records, what is known of pods. Data that a tenant controls proves
nothing except in its own favour, and that within a bound: the driver's list, a pid's start and its
cgroup come from the kernel, the limit from the grant.

A container may hold, on a card, its grant and in addition

- memory that the library counts but can't refuse: the driver creates contexts and modules before
  their size is known (docs/libvgpu.md, "Memory that no call names"), so they exceed a slice that
  was full. The library states their size in the region, measured by NVML. The tenant could write
  there too, so of each process it counts up to `Tolerance.overhead_mib`, and of all together up to
  as much as was granted (small slices: up to that of two processes);
- one granule of the driver, 2 MiB, for each process: NVML counts granules, the library bytes.

Memory decides first and needs nothing that a tenant can write: the content of a region can make a
container look better by the tolerance, never by more.

`view_of` collects the facts of one look: a process is a container's by its cgroup only, which the
kernel keeps and no tenant can write; the container's name comes with the runtime's id of it, which
the kubelet reports.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, Protocol

from hamicommon.domain.granted_cards import LimitState
from hamicommon.domain.ids import PodUid
from hamicommon.domain.pod_ref import PodRef

from hami_node_agent.devices.processes import HostProcess
from hami_node_agent.grants.records import PodsSeen, Record
from hami_node_agent.usage.monitor import ContainerUse, MonitorLook


class ContainerKey(NamedTuple):
    """Container of a pod of this node."""

    pod_uid: str
    container: str
    """Name of the container; empty if it is unknown which one of the pod's it is."""


class LimitKey(NamedTuple):
    """Container on one card."""

    pod_uid: str
    container: str
    card: str

    @property
    def owner(self) -> ContainerKey:
        """Key of the container."""
        return ContainerKey(self.pod_uid, self.container)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedProcess:
    """Process of a container that the driver lists on a card."""

    card: str
    owner: ContainerKey
    host_pid: int
    inner_pid: int
    """Pid in its innermost namespace, as the library records it."""
    started_ticks: int
    held_mib: int | None
    """Memory on the card as the driver reports it; None: the driver does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Grant of a container on one card."""

    granted_mib: int
    controlled: bool = True
    """Whether the container has the library preloaded; false for whole cards and MIG instances."""
    hardware: bool = False
    """Whether it is a MIG instance, whose memory the hardware limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Amounts that a container's library has recorded in its region."""

    overhead_mib: Mapping[tuple[int, int], Mapping[str, int]] = field(default_factory=dict)
    """Overhead of contexts and modules by card, by (pid in the container, start in clock ticks).

    The start is 0 with HAMi's library, which does not write it.
    """
    readable: bool = True

    def overhead_of(self, process: ListedProcess) -> int | None:
        """Return the process's recorded overhead; None: it does not use the library."""
        for key in ((process.inner_pid, process.started_ticks), (process.inner_pid, 0)):
            if key in self.overhead_mib:
                return self.overhead_mib[key].get(process.card, 0)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts of one moment, from which containers are judged."""

    processes: tuple[ListedProcess, ...] = ()
    limits: Mapping[ContainerKey, Mapping[str, Limit]] = field(default_factory=dict)
    """Limits of every container with a grant, by card."""
    accounts: Mapping[ContainerKey, Account] = field(default_factory=dict)
    """Records of containers that have a region, at least of those with listed processes."""
    blind: Mapping[str, str] = field(default_factory=dict)
    """Cards whose processes' memory is unknown, with the reason; "" stands for all cards."""
    elsewhere: Mapping[ContainerKey, str] = field(default_factory=dict)
    """Containers without a grant that got their devices in another way, and which."""


GRANULE_MIB = 2
_NO_ACCOUNT = Account()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Memory that a container may hold above its grant."""

    overhead_mib: int = 1024
    """Overhead per process for contexts and modules that came when the slice was full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Judgement on one container and card at one moment."""

    state: LimitState
    granted_mib: int
    """Granted memory; 0: none there."""
    held_mib: int | None
    """Memory of all its processes there; None: the driver does not report it."""
    reason: str = ""
    """Reason in one sentence; empty if the limits are enforced."""


def judge(facts: Facts, tolerance: Tolerance) -> dict[LimitKey, Judgement]:
    """Judge all containers that have a grant, or a process on a card."""
    processes: defaultdict[LimitKey, list[ListedProcess]] = defaultdict(list)
    for process in facts.processes:
        processes[LimitKey(*process.owner, process.card)].append(process)
    found: dict[LimitKey, Judgement] = {}
    for owner, limits in facts.limits.items():
        for card, limit in limits.items():
            key = LimitKey(*owner, card)
            found[key] = _judge_granted(key, limit, processes.pop(key, ()), facts, tolerance)
    for key, listed in processes.items():
        found[key] = _judge_ungranted(key, listed, facts)
    return found


def _judge_granted(
    key: LimitKey,
    limit: Limit,
    listed: Sequence[ListedProcess],
    facts: Facts,
    tolerance: Tolerance,
) -> Judgement:
    blind = facts.blind.get(key.card) or facts.blind.get("", "")
    if not listed and not blind:
        return Judgement(state=LimitState.ENFORCED, granted_mib=limit.granted_mib, held_mib=0)
    held_mib = _held_mib(listed)
    state, reason = _state(key, limit, listed, facts.accounts.get(key.owner), tolerance)
    if not state.violates and blind:
        state, reason = LimitState.UNKNOWN, blind
        held_mib = None if not listed else held_mib
    return Judgement(state=state, granted_mib=limit.granted_mib, held_mib=held_mib, reason=reason)


def _state(
    key: LimitKey,
    limit: Limit,
    listed: Sequence[ListedProcess],
    account: Account | None,
    tolerance: Tolerance,
) -> tuple[LimitState, str]:
    known_mib = sum(process.held_mib or 0 for process in listed)
    overhead = {
        process.host_pid: (account or _NO_ACCOUNT).overhead_of(process) for process in listed
    }
    allowed_mib = limit.granted_mib + _allowance(limit, overhead, account, tolerance)
    if known_mib > allowed_mib and not limit.hardware:
        return LimitState.EXCEEDED, (
            f"its processes hold {known_mib} MiB of {key.card} by the driver's report and were "
            f"granted {limit.granted_mib} MiB"
        )
    if limit.controlled and (account is None or account.readable):
        past = [process.host_pid for process in listed if overhead[process.host_pid] is None]
        if past:
            return LimitState.BYPASSED, (
                f"{_processes(past)} of it on {key.card} without the library that holds it to its "
                "grant"
            )
    if any(process.held_mib is None for process in listed) and not limit.hardware:
        return (
            LimitState.UNKNOWN,
            f"the driver does not report what its processes hold of {key.card}",
        )
    if limit.controlled and listed and account is not None and not account.readable:
        return LimitState.UNKNOWN, "its shared region can't be read"
    return LimitState.ENFORCED, ""


def _judge_ungranted(key: LimitKey, listed: Sequence[ListedProcess], facts: Facts) -> Judgement:
    given = facts.elsewhere.get(key.owner)
    held_mib = _held_mib(listed)
    if given is not None:
        return Judgement(state=LimitState.UNKNOWN, granted_mib=0, held_mib=held_mib, reason=given)
    if not key.container:
        return Judgement(
            state=LimitState.UNKNOWN,
            granted_mib=0,
            held_mib=held_mib,
            reason="the container of the pod that its processes belong to is unknown",
        )
    return Judgement(
        state=LimitState.BYPASSED,
        granted_mib=0,
        held_mib=held_mib,
        reason=f"{_processes([each.host_pid for each in listed])} of it on {key.card}, of which "
        "it has no grant",
    )


def _held_mib(listed: Sequence[ListedProcess]) -> int | None:
    """Return the sum of known memory; None if none is known."""
    known = [process.held_mib for process in listed if process.held_mib is not None]
    return None if listed and not known else sum(known)


def _allowance(
    limit: Limit,
    overhead: Mapping[int, int | None],
    account: Account | None,
    tolerance: Tolerance,
) -> int:
    granules_mib = GRANULE_MIB * len(overhead)
    most_mib = tolerance.overhead_mib
    if account is not None and not account.readable:
        # What the library charged is not known: the benefit of the doubt, within the bound.
        return most_mib + granules_mib
    stated = (min(max(0, mib), most_mib) for mib in overhead.values() if mib is not None)
    return min(sum(stated), max(2 * most_mib, limit.granted_mib)) + granules_mib


def _processes(pids: Sequence[int]) -> str:
    shown = ", ".join(str(pid) for pid in sorted(pids)[:3])
    more = f" and {len(pids) - 3} more" if len(pids) > 3 else ""
    return f"host process{'es' if len(pids) > 1 else ''} {shown}{more}"


MIB = 1024 * 1024


class KnownPods(Protocol):
    """Pods of this node, as the watch has them."""

    @property
    def live(self) -> bool:
        """Return whether the watch is current."""

    def snapshot(self) -> PodsSeen:
        """Return what the watch has at present."""

    def name_of(self, pod_uid: str) -> PodRef | None:
        """The pod of this node with that uid."""

    def api_uid(self, kubelet_uid: str) -> str:
        """Return the API server's uid for a pod's uid at the kubelet."""

    def container_of(self, container_id: str) -> tuple[str, str] | None:
        """Return (pod uid, name) of the container with this runtime id."""


class Kind(StrEnum):
    """Kind of owner of a process on a card."""

    CONTAINER = "container"
    EXEMPT = "exempt"
    """The pod is in a namespace that the operator exempted."""
    ENDED = "ended"
    """The pod has ended: the process is about to end, or was reported."""
    HOST = "host"
    """The process belongs to no pod, but to the host or another container runtime."""
    UNRESOLVED = "unresolved"
    """The driver lists the process, but it is not in the host's /proc."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardTotals:
    """Number of processes on one card by kind of owner."""

    processes: Mapping[Kind, int]
    held_mib: Mapping[Kind, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """Facts of a node, and totals for metrics."""

    facts: Facts
    totals: Mapping[str, CardTotals] = field(default_factory=dict)
    """Totals by card."""
    unresolved: Mapping[tuple[str, int], int] = field(default_factory=dict)
    """Number of successive samples in which (card, pid) could not be resolved."""


STUCK_LOOKS = 3
"""Number of samples after which an unresolved process counts as stuck, not as just ended."""
_ALL = ""


def limits_of(
    records: Iterable[Record], *, ended: frozenset[PodUid], controlled: bool
) -> dict[ContainerKey, dict[str, Limit]]:
    """Return the limits by container and card, for containers whose grant still counts.

    `controlled`: the library is preloaded in containers that have no MIG instance, and in those
    of pods with whole cards that are to run with it.
    """
    limits: defaultdict[ContainerKey, dict[str, Limit]] = defaultdict(dict)
    for record in records:
        if not record.allocation_id or record.pod_uid in ended:
            continue
        of_container = limits[ContainerKey(record.pod_uid, record.container)]
        instance = bool(record.mig_uuids)
        for share in record.shares:
            before = of_container.get(share.uuid)
            of_container[share.uuid] = Limit(
                granted_mib=share.memory_mib + (0 if before is None else before.granted_mib),
                controlled=controlled and not instance and not record.plain,
                # 0 is no limit, in the limits file too.
                hardware=instance or share.memory_mib == 0,
            )
    return dict(limits)


class Resolver:
    """Find the container of a process."""

    def __init__(
        self,
        pods: KnownPods,
        limits: Mapping[ContainerKey, Mapping[str, Limit]],
        exempt_namespaces: frozenset[str],
        shared_with: Mapping[tuple[str, str], tuple[str, str]] = MappingProxyType({}),
    ) -> None:
        """Create the instance.

        `shared_with`: container (pod uid, name) -> the container whose slices it shares; its
        processes count there.
        """
        self._shared_with = {
            ContainerKey(*own): ContainerKey(*of) for own, of in shared_with.items()
        }
        self._pods = pods
        self._ended = pods.snapshot().ended
        self._exempt = exempt_namespaces
        self._granted: defaultdict[str, list[str]] = defaultdict(list)
        for owner in (*limits, *self._shared_with):
            self._granted[owner.pod_uid].append(owner.container)

    def owner_of(self, process: HostProcess) -> tuple[Kind, ContainerKey]:
        """Return the owner of a process; the key is empty if it is no container's."""
        named = self._pods.container_of(process.container_id) if process.container_id else None
        if named is not None:
            pod_uid, container = named
        else:
            pod_uid = process.pod_uid or self._api_uid(process.static_pod)
            only = self._granted.get(pod_uid, ())
            container = only[0] if len(only) == 1 else ""
        if not pod_uid:
            return Kind.HOST, ContainerKey("", "")
        key = ContainerKey(pod_uid, container)
        if PodUid(pod_uid) in self._ended:
            return Kind.ENDED, key
        pod = self._pods.name_of(pod_uid)
        if pod is None and self._pods.live and pod_uid not in self._granted:
            # The API server had deleted it before this agent began.
            return Kind.ENDED, key
        if pod is not None and pod.namespace in self._exempt:
            return Kind.EXEMPT, key
        return Kind.CONTAINER, self._shared_with.get(key, key)

    def _api_uid(self, kubelet_uid: str) -> str:
        return self._pods.api_uid(kubelet_uid) if kubelet_uid else ""


def view_of(
    look: MonitorLook,
    *,
    resolver: Resolver,
    limits: Mapping[ContainerKey, Mapping[str, Limit]],
    directories: Mapping[str, ContainerKey],
    cards: Iterable[str],
    used_mib: Callable[[str], int | None],
    before: Mapping[tuple[str, int], int],
) -> NodeView:
    """Resolve and judge the processes of this node.

    `directories`: the containers' region directories. `cards`: all offered cards of this node.
    `used_mib`: in use on a card, by any process. `before`: `unresolved` of the last look.
    """
    evidence = look.evidence
    if evidence is None:
        reason = "the node-agent does not see the host's processes (HAMI_NODE_AGENT_PROC_ROOT)"
        return NodeView(facts=Facts(limits=limits, blind={_ALL: reason}))
    found: list[ListedProcess] = []
    totals: dict[str, CardTotals] = {}
    unresolved: dict[tuple[str, int], int] = {}
    for card, listed in evidence.cards.items():
        processes: Counter[Kind] = Counter()
        held: Counter[Kind] = Counter()
        for pid in listed.pids:
            held_mib = listed.held_mib.get(pid)
            process = evidence.living.get(pid)
            kind, owner = Kind.UNRESOLVED, ContainerKey("", "")
            if process is None:
                unresolved[card, pid] = before.get((card, pid), 0) + 1
            else:
                kind, owner = resolver.owner_of(process)
            if process is not None and kind is Kind.CONTAINER:
                found.append(
                    ListedProcess(
                        card=card,
                        owner=owner,
                        host_pid=pid,
                        inner_pid=process.inner_pid,
                        started_ticks=process.started_ticks,
                        held_mib=held_mib,
                    )
                )
            processes[kind] += 1
            held[kind] += held_mib or 0
        totals[card] = CardTotals(processes=processes, held_mib=held)
    owners = {process.owner for process in found}
    facts = Facts(
        processes=tuple(found),
        limits=limits,
        accounts=_accounts(look, directories, owners),
        blind=_blind(look, cards, unresolved, used_mib),
    )
    return NodeView(facts=facts, totals=totals, unresolved=unresolved)


def _accounts(
    look: MonitorLook, directories: Mapping[str, ContainerKey], wanted: set[ContainerKey]
) -> dict[ContainerKey, Account]:
    found: dict[ContainerKey, Account] = {}
    for seen in look.seen:
        owner = seen.container.owner
        key = ContainerKey(owner.pod.uid, owner.container)
        if key in wanted:
            found[key] = _account(seen)
    for name in look.unreadable:
        key_or_none = directories.get(name)
        if key_or_none in wanted and key_or_none is not None:
            found[key_or_none] = Account(readable=False)
    return found


def _account(seen: ContainerUse) -> Account:
    region = seen.container.region
    return Account(
        overhead_mib={
            (process.pid, process.started_ticks): {
                card.uuid: (held.context_bytes + held.module_bytes) // MIB
                for card, held in zip(region.cards, process.held, strict=True)
            }
            for process in region.processes
        }
    )


def _blind(
    look: MonitorLook,
    cards: Iterable[str],
    unresolved: Mapping[tuple[str, int], int],
    used_mib: Callable[[str], int | None],
) -> dict[str, str]:
    assert look.evidence is not None
    listed = look.evidence.cards
    blind = {
        card: f"the driver does not list the processes of {card}"
        for card in cards
        if card not in listed
    }
    for (card, pid), looks in unresolved.items():
        if looks >= STUCK_LOOKS:
            blind[card] = (
                f"the driver lists a process {pid} on {card} that the host's /proc does not have"
            )
    for card, stated_mib in _stated_mib(look).items():
        # A driver that counts in the agent's own pid namespace lists no other processes.
        if stated_mib and card in listed and not listed[card].pids:
            in_use_mib = used_mib(card)
            if in_use_mib is not None and in_use_mib >= stated_mib:
                blind[card] = (
                    f"the driver lists no process on {card}, of which {in_use_mib} MiB are in use "
                    "(does the node-agent run in the host's pid namespace?)"
                )
    return blind


def _stated_mib(look: MonitorLook) -> Counter[str]:
    """Return the sum of recorded memory per card."""
    stated: Counter[str] = Counter()
    for seen in look.seen:
        for use in seen.uses:
            if use.total_bytes and seen.container.owns(use.card.uuid):
                stated[use.card.uuid] += use.total_bytes // MIB
    return stated
