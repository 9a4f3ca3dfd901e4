"""Find pods that left: report them, drop their records, and remove their folders.

A pod has left when its object is gone from the API server, the kubelet no longer has it, and its
cgroup holds no process. While one of the first two can't be asked, nothing is reported: unknown is
not gone. A pod that has not left although its grant has ended (for example, given up while this
node was silent) is reported as well: its cards may be granted to another pod by now.

Leftovers that belong to no pod (directories and answers that neither we nor the kubelet know) are
searched for every minute.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from operator import methodcaller
from typing import Protocol

from hamicommon.clipping import clip
from hamicommon.domain.allocations import AllocationState
from hamicommon.errors import HamiError, Unavailable
from hamicommon.process.backoff import Backoff
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.process.periodic import every

from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.grants.ports import Holding, KubeletState
from hami_node_agent.grants.records import AgentState, Record, passed_on
from hami_node_agent.grants.reports import Reports
from hami_node_agent.grants.state import NodeState

logger = logging.getLogger(__name__)

# HAMi's resync interval: unknown directories are kept as long.
STRAY_AGE_S = 300.0
STRAY_INTERVAL_S = 60.0


class PodFiles(Protocol):
    """Folders of pods on the host."""

    def remove_pod(self, cache_dirs: Iterable[str], nonces: Iterable[str]) -> None:
        """Release the folders of a pod that left, for removal (blocking)."""

    def cdi_nonces(self) -> frozenset[str]:
        """Return the nonces that CDI files describe (blocking)."""

    def remove_strays(
        self, *, nonces: frozenset[str], cache_dirs: frozenset[str], older_than_s: float
    ) -> None:
        """Release unknown folders, for removal (blocking)."""


class Strays:
    """Find and remove files that belong to no pod."""

    def __init__(self, state: NodeState, *, kubelet_state: KubeletState, files: PodFiles) -> None:
        self._state = state
        self._kubelet_state = kubelet_state
        self._files = files
        self._swept_at = time.monotonic()
        self._unheld: frozenset[str] = frozenset()

    async def sweep(self) -> None:
        """Remove stray files, at most once a minute."""
        if time.monotonic() - self._swept_at > STRAY_INTERVAL_S:
            await self._remove()
            self._swept_at = time.monotonic()

    async def _remove(self) -> None:
        """Remove files left by kills between writing and recording, or by earlier agents."""
        try:
            holdings = await self._kubelet_state.holdings()
        except Unavailable:
            return
        answers = [holding.answer for holding in holdings if holding.answer is not None]
        await self._drop_nobodys(holdings)
        records = self._state.saved.records.values()
        known_dirs = {record.cache_dir for record in records}
        known_dirs |= {answer.cache_dir for answer in answers}
        known_dirs |= {h.foreign.cache_dir for h in holdings if h.foreign is not None}
        known_dirs |= {f"{holding.pod_uid}_{holding.container}" for holding in holdings}
        nonces = frozenset(r.nonce for r in records) | {answer.nonce for answer in answers}
        await asyncio.to_thread(
            self._files.remove_strays,
            nonces=nonces | await self._claimed_nonces(nonces),
            cache_dirs=frozenset(known_dirs),
            older_than_s=STRAY_AGE_S,
        )

    async def _claimed_nonces(self, known: frozenset[str]) -> frozenset[str]:
        """Return slices by claims whose records are lost; `dra/` needs their files.

        Where the kubelet can't be asked, all that are described.
        """
        unknown = await asyncio.to_thread(self._files.cdi_nonces) - known
        if not unknown:
            return unknown
        try:
            return unknown & await self._kubelet_state.claim_nonces()
        except Unavailable:
            return unknown

    async def _drop_nobodys(self, holdings: Sequence[Holding]) -> None:
        """Drop answers without a pod that the kubelet has not had for two rounds."""
        nonces = {h.answer.nonce for h in holdings if h.answer is not None}
        ids = {h.device_ids for h in holdings if h.answer is None}
        unheld = frozenset(
            record.nonce
            for record in self._state.saved.records.values()
            if not record.pod_uid and record.nonce not in nonces and record.device_ids not in ids
        )
        gone = unheld & self._unheld
        self._unheld = unheld - gone
        if gone:
            await self._state.change(lambda saved: saved.without_records(gone))


# A grant that is still being bound has no pod on this node yet.
_BOUND = frozenset({AllocationState.BOUND, AllocationState.ALLOCATED, AllocationState.RELEASING})
# Of a pod that can't be checked: the first pause is the sweep's own.
RETRY_LAST_S = 30.0
# Directories of pods that left are removed a little at a time, beside everything else: one may hold
# a hundred thousand files, or be filled by a process that outlived its pod.
REMOVAL_INTERVAL_S = 5.0
BUSY_REMOVAL_INTERVAL_S = 1.0
REMOVAL_BUDGET_S = 2.0
"""Maximum time of one round; with the pauses this takes two thirds of a core at most."""


class PodLookup(Protocol):
    """Source of facts about pods."""

    @property
    def live(self) -> bool:
        """Return whether the watch is current."""

    def knows(self, pod_uid: str) -> bool:
        """Return whether the watch has the pod."""

    def uid_of(self, namespace: str, name: str) -> str:
        """Return the present uid of this node's pod of that name."""

    async def still_there(self, *, namespace: str, name: str, pod_uid: str) -> bool:
        """Ask the API server whether the pod object exists. Raises: HamiError."""


class Processes(Protocol):
    """Source of facts about processes on the host."""

    def has_processes(self, pod_uid: str) -> bool:
        """Return whether the pod has processes (blocking)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Suspect:
    pod_uid: str
    namespace: str
    name: str
    allocation_id: str
    token: int


@dataclass(slots=True)
class _Retry:
    backoff: Backoff
    at_s: float = 0.0
    """Time of the retry, on the monotonic clock."""


@dataclass(eq=False)
class Sweeper:
    """Find pods that left, and clean up after them."""

    state: NodeState
    _: KW_ONLY
    pods: PodLookup
    kubelet_state: KubeletState
    processes: Processes
    files: PodFiles
    reports: Reports
    interval_s: float
    bulkhead: Bulkhead = field(default_factory=Bulkhead)
    _retries: dict[str, _Retry] = field(default_factory=dict, init=False)
    """Failed checks by pod, for retries."""
    _reported_to_stay: set[str] = field(default_factory=set, init=False)
    """Allocations whose pods this process has reported as still running."""
    _strays: Strays = field(init=False)

    def __post_init__(self) -> None:
        self._strays = Strays(self.state, kubelet_state=self.kubelet_state, files=self.files)

    async def run(self) -> None:
        """Sweep until cancelled."""
        await every(self.interval_s, self.sweep, name="sweep")

    async def sweep(self) -> None:
        """Check once for grants whose pods left. Raises: Unavailable."""
        if not self.pods.live:
            return
        suspects = self._suspects()
        uids = {suspect.pod_uid for suspect in suspects}
        self._retries = {uid: retry for uid, retry in self._retries.items() if uid in uids}
        due = [suspect for suspect in suspects if self._is_due(suspect)]
        if due:
            kept = await self.kubelet_state.pods()
            for suspect in due:
                await self._check(suspect, kept)
        await self._strays.sweep()

    def _is_due(self, suspect: _Suspect) -> bool:
        retry = self._retries.get(suspect.pod_uid)
        return retry is None or time.monotonic() >= retry.at_s

    async def _check(self, suspect: _Suspect, kept: frozenset[tuple[str, str]]) -> None:
        """Check one suspect; after an error, retry later without delaying others."""
        uid = suspect.pod_uid
        try:
            with self.bulkhead.item("sweep", uid):
                await self._look_at(suspect, kept)
                self._retries.pop(uid, None)
                return
            error = "unexpected, see the traceback"
        except HamiError as exc:
            error = clip(str(exc))
        retry = self._retries.setdefault(
            uid, _Retry(Backoff(self.interval_s, max(self.interval_s, RETRY_LAST_S)))
        )
        pause_s = retry.backoff.next_s()
        retry.at_s = time.monotonic() + pause_s
        logger.warning(
            "Retrying to check a pod", extra={"pod_uid": uid, "error": error, "retry_s": pause_s}
        )

    async def _look_at(self, suspect: _Suspect, kept: frozenset[tuple[str, str]]) -> None:
        """Check one pod, and clean up if it left. Raises: HamiError."""
        if await self._has_left(suspect, kept):
            await self._forget(suspect)
        elif await self._outlives_its_grant(suspect):
            await self._report_that_it_stays(suspect)

    def _suspects(self) -> list[_Suspect]:
        """Return pods that the watch lacks, with records or with a grant but no Allocate call.

        The latest known attempt of a pod counts. A record without a grant (an answer that the
        kubelet gave to another pod than intended) shows only that the pod was here.
        """
        # Without a pod: PreStartContainer finds the pod, or `Strays` that there is none.
        records = [record for record in self.state.saved.records.values() if record.pod_uid]
        here = {record.pod_uid for record in records}
        bound = (
            grant
            for grant in self.state.book.grants.values()
            if grant.state in _BOUND or grant.pod_uid in here
        )
        found: dict[str, _Suspect] = {}
        everything: list[NodeGrant | Record] = [*bound, *records]
        latest = [known for known in everything if not self.pods.knows(known.pod_uid)]
        latest.sort(key=lambda known: (bool(known.allocation_id), known.token))
        for known in latest:
            found[known.pod_uid] = _Suspect(
                pod_uid=known.pod_uid,
                namespace=known.namespace,
                name=known.pod_name,
                allocation_id=known.allocation_id,
                token=known.token,
            )
        return list(found.values())

    async def _has_left(self, suspect: _Suspect, kept: frozenset[tuple[str, str]]) -> bool:
        """Return whether the pod left. Raises: Unavailable if this can't be determined."""
        if not suspect.name:
            # Of a pod that took another's answer before our watch knew it there is only its uid.
            holdings = await self.kubelet_state.holdings()
            there = any(holding.pod_uid == suspect.pod_uid for holding in holdings)
        else:
            there = self._has(kept, suspect) or await self.pods.still_there(
                namespace=suspect.namespace, name=suspect.name, pod_uid=suspect.pod_uid
            )
        return not there and not await asyncio.to_thread(
            self.processes.has_processes, suspect.pod_uid
        )

    async def _outlives_its_grant(self, suspect: _Suspect) -> bool:
        """Return whether a pod that has not left has ended. Raises: Unavailable.

        A kubelet keeps pods that are over for a while: only processes run on.
        """
        ended = self.state.book.whole and self.state.book.of(suspect.pod_uid) is None
        if not (ended and suspect.name and suspect.allocation_id):
            return False
        if suspect.allocation_id in self._reported_to_stay:
            return False
        if not await asyncio.to_thread(self.processes.has_processes, suspect.pod_uid):
            return False
        return not await self.pods.still_there(
            namespace=suspect.namespace, name=suspect.name, pod_uid=suspect.pod_uid
        )

    async def _report_that_it_stays(self, suspect: _Suspect) -> None:
        logger.warning("Found a pod that runs without a grant", extra={"pod_uid": suspect.pod_uid})
        report = self.reports.stays(
            allocation_id=suspect.allocation_id, pod_uid=suspect.pod_uid, token=suspect.token
        )
        await self.state.change(methodcaller("with_report", report))
        self._reported_to_stay.add(suspect.allocation_id)

    def _has(self, kept: frozenset[tuple[str, str]], suspect: _Suspect) -> bool:
        """Return whether the kubelet has the pod; PodResources names pods without their uid."""
        if (suspect.namespace, suspect.name) not in kept:
            return False
        # The name may be a successor's. The kubelet admits that one only after it is done with
        # its predecessor, because it can't have both under one name.
        return self.pods.uid_of(suspect.namespace, suspect.name) in ("", suspect.pod_uid)

    async def _forget(self, suspect: _Suspect) -> None:
        held = await self._held_by_others(suspect)
        shared = await self._shared_nonces(suspect)
        grant, book = self.state.book.of(suspect.pod_uid), self.state.book
        if grant is not None:
            book = book.without(
                grant.allocation_id, grant.pod_uid, grant.token, heard_at=time.monotonic()
            )
        # What an unscheduled pod left has no allocation. A pod whose slices others have is looked
        # at until their grants are known: once its own has ended, there is nothing new to report.
        reporting = bool(suspect.allocation_id) and not (shared and grant is None)
        if reporting or not shared:
            logger.info("Terminated a pod", extra={"pod_uid": suspect.pod_uid, "pod": suspect.name})
        report = self.reports.gone_report(
            allocation_id=suspect.allocation_id, pod_uid=suspect.pod_uid, token=suspect.token
        )

        def edit(saved: AgentState) -> AgentState:
            after = passed_on(saved, book).without_pod(suspect.pod_uid, but=shared)
            return after.with_report(report) if reporting else after

        left = passed_on(self.state.saved, book)
        kept = held | shared
        records = [record for record in left.of_pod(suspect.pod_uid) if record.nonce not in kept]
        await self.state.change(edit)
        grant = self.state.book.of(suspect.pod_uid)
        if grant is not None:
            self.state.book = self.state.book.without(
                grant.allocation_id, grant.pod_uid, grant.token, heard_at=time.monotonic()
            )
        await asyncio.to_thread(
            self.files.remove_pod,
            [record.cache_dir for record in records],
            [record.nonce for record in records],
        )

    async def _shared_nonces(self, suspect: _Suspect) -> frozenset[str]:
        """Return nonces of the pod's slices that other pods have by the same claim.

        The kubelet gives them to a second pod without asking us, and the grant of that one may not
        be known yet: records, limits and account are kept for it. Raises: Unavailable.
        """
        records = self.state.saved.of_pod(suspect.pod_uid)
        own = frozenset(record.nonce for record in records if not record.device_ids)
        return own & await self.kubelet_state.claim_nonces() if own else own

    async def _held_by_others(self, suspect: _Suspect) -> frozenset[str]:
        """Return nonces of the pod's answers that the kubelet has given to other pods.

        Such a container has the directories mounted, or will have. Raises: Unavailable.
        """
        return frozenset(
            holding.answer.nonce
            for holding in await self.kubelet_state.holdings()
            if holding.answer is not None and holding.pod_uid != suspect.pod_uid
        )


async def remove_leftovers(work: Callable[[float], bool]) -> None:
    """Call `work` with a time budget until cancelled; it returns True if more is left."""
    more = False

    async def one_round() -> None:
        nonlocal more
        more = await asyncio.to_thread(work, REMOVAL_BUDGET_S)

    def pause_s() -> float:
        return BUSY_REMOVAL_INTERVAL_S if more else REMOVAL_INTERVAL_S

    await every(pause_s, one_round, name="leftovers")
