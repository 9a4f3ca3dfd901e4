"""State of each container on each card at one moment. Pure; `periods.py` adds the time.

In: `Facts`, made by `look.py`. Nothing in a tenant's hands proves anything here but for its own
benefit, and that within a bound: the driver's list, a pid's start and its cgroup are the kernel's,
the limit is the grant's.

A container may hold, on a card, its grant and on top of it

- what the library charges without being able to refuse it: contexts and modules are made by the
  driver before anybody knows their size (docs/libvgpu-memory.md, "Memory that no call names"), so a
  slice that was full when they came is exceeded by them. How much that is the library itself states
  in the region, measured by NVML. The tenant could write there too, so of each process it counts up
  to `Tolerance.overhead_mib`, and of all together up to as much as was granted (small slices: up to
  that of two processes);
- one granule of the driver's, 2 MiB, for each process: NVML counts granules, the library bytes.

Memory decides first and needs nothing that a tenant can write: what is in a region can make a
container look better by the tolerance, never by more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hamicommon.domain.limits import LimitState


class ContainerKey(NamedTuple):
    """A container of a pod of this node."""

    pod_uid: str
    container: str
    """Empty: of this pod, but nobody knows yet of which container."""


class LimitKey(NamedTuple):
    """A container on one card: what has one state."""

    pod_uid: str
    container: str
    card: str

    @property
    def owner(self) -> ContainerKey:
        """The container."""
        return ContainerKey(self.pod_uid, self.container)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedProcess:
    """A process that the driver lists on a card, and that is some container's."""

    card: str
    owner: ContainerKey
    host_pid: int
    inner_pid: int
    """In its innermost pid namespace, where the library counts it."""
    started_ticks: int
    held_mib: int | None
    """What the driver reports that it holds there; None: the driver does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What a container was granted of one card."""

    granted_mib: int
    controlled: bool = True
    """The library is preloaded in it; False for whole cards and MIG instances."""
    hardware: bool = False
    """A MIG instance: the card itself holds it to its memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What a container's region has of its processes."""

    overhead_mib: Mapping[tuple[int, int], Mapping[str, int]] = field(default_factory=dict)
    """By pid in the container and start in clock ticks (0: HAMi's library does not write it): by
    card, what the library charged for contexts and modules."""
    readable: bool = True

    def overhead_of(self, process: ListedProcess) -> int | None:
        """What it states of the process on its card; None: the library is not in the process."""
        for key in ((process.inner_pid, process.started_ticks), (process.inner_pid, 0)):
            if key in self.overhead_mib:
                return self.overhead_mib[key].get(process.card, 0)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything about one moment."""

    processes: tuple[ListedProcess, ...] = ()
    limits: Mapping[ContainerKey, Mapping[str, Limit]] = field(default_factory=dict)
    """By card: of every container that has a grant."""
    accounts: Mapping[ContainerKey, Account] = field(default_factory=dict)
    """Of containers that have a region; at least of those with listed processes."""
    blind: Mapping[str, str] = field(default_factory=dict)
    """Cards on which it can't be known who holds what, with the reason; "" stands for all."""
    elsewhere: Mapping[ContainerKey, str] = field(default_factory=dict)
    """Containers without a grant of ours that were given their devices in another way: how."""


GRANULE_MIB = 2
_NO_ACCOUNT = Account()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How much more than its grant a container may hold."""

    overhead_mib: int = 1024
    """For contexts and modules that came when the slice was full; of each process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One container on one card, at one moment."""

    state: LimitState
    granted_mib: int
    """0: it has no grant there."""
    held_mib: int | None
    """By all its processes there; None: the driver does not report it."""
    reason: str = ""
    """One sentence; empty when all is well."""


def judge(facts: Facts, tolerance: Tolerance) -> dict[LimitKey, Judgement]:
    """All containers that have a grant, and all that have a process on a card."""
    processes: defaultdict[LimitKey, list[ListedProcess]] = defaultdict(list)
    for process in facts.processes:
        processes[LimitKey(*process.owner, process.card)].append(process)
    found: dict[LimitKey, Judgement] = {}
    for owner, limits in facts.limits.items():
        for card, limit in limits.items():
            key = LimitKey(*owner, card)
            found[key] = _granted(key, limit, processes.pop(key, ()), facts, tolerance)
    for key, listed in processes.items():
        found[key] = _ungranted(key, listed, facts)
    return found


def _granted(
    key: LimitKey,
    limit: Limit,
    listed: Sequence[ListedProcess],
    facts: Facts,
    tolerance: Tolerance,
) -> Judgement:
    blind = facts.blind.get(key.card) or facts.blind.get("", "")
    if not listed and not blind:
        return Judgement(state=LimitState.ENFORCED, granted_mib=limit.granted_mib, held_mib=0)
    held_mib = _held(listed)
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
    overhead = {process.host_pid: _overhead(process, account) for process in listed}
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


def _ungranted(key: LimitKey, listed: Sequence[ListedProcess], facts: Facts) -> Judgement:
    given = facts.elsewhere.get(key.owner)
    held_mib = _held(listed)
    if given is not None:
        return Judgement(state=LimitState.UNKNOWN, granted_mib=0, held_mib=held_mib, reason=given)
    if not key.container:
        return Judgement(
            state=LimitState.UNKNOWN,
            granted_mib=0,
            held_mib=held_mib,
            reason="it is not known of which container of the pod its processes are",
        )
    return Judgement(
        state=LimitState.BYPASSED,
        granted_mib=0,
        held_mib=held_mib,
        reason=f"{_processes([each.host_pid for each in listed])} of it on {key.card}, of which "
        "it has no grant",
    )


def _held(listed: Sequence[ListedProcess]) -> int | None:
    """What is known of it; None only when nothing is."""
    known = [process.held_mib for process in listed if process.held_mib is not None]
    return None if listed and not known else sum(known)


def _overhead(process: ListedProcess, account: Account | None) -> int | None:
    return (account or _NO_ACCOUNT).overhead_of(process)


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
