"""What one look at the node brought together: processes on cards, grants, accounts.

In: made by `look.py`. Out: read by `judgement.py`. Nothing in a tenant's hands proves anything here
except for the tenant's own benefit, and that within a bound: the driver's list, the pid's start and
its cgroup are the kernel's, the limit is the grant's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


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
