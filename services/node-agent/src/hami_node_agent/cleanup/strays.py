"""Leftovers that belong to no pod: directories and answers that neither we nor the kubelet know.

In: our records and the kubelet's state, every minute; where that can't be read, nothing goes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from hamicommon.errors import Unavailable

from hami_node_agent.grants.kubelet_answers import Holding
from hami_node_agent.grants.ports import KubeletState
from hami_node_agent.grants.state import NodeState

# HAMi's resync interval: directories that nobody knows are kept as long.
STRAY_AGE_S = 300.0
STRAY_INTERVAL_S = 60.0


class PodFiles(Protocol):
    """The host's directories."""

    def remove_pod(self, cache_dirs: Iterable[str], nonces: Iterable[str]) -> None:
        """Removes directories of a pod that left (blocking)."""

    def described(self) -> frozenset[str]:
        """Nonces that the container runtime finds descriptions of (blocking)."""

    def remove_strays(
        self, *, nonces: frozenset[str], cache_dirs: frozenset[str], older_than_s: float
    ) -> None:
        """Removes directories that nobody knows (blocking)."""


class Strays:
    """Looks for leftovers and removes them."""

    def __init__(self, state: NodeState, *, kubelet_state: KubeletState, files: PodFiles) -> None:
        self._state = state
        self._kubelet_state = kubelet_state
        self._files = files
        self._swept_at = time.monotonic()
        self._unheld: frozenset[str] = frozenset()

    async def sweep(self) -> None:
        """One round, when a minute has passed since the last."""
        if time.monotonic() - self._swept_at > STRAY_INTERVAL_S:
            await self._remove()
            self._swept_at = time.monotonic()

    async def _remove(self) -> None:
        """Leftovers of kills between writing and recording, and of pods before our time."""
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
            nonces=nonces | await self._claimed(nonces),
            cache_dirs=frozenset(known_dirs),
            older_than_s=STRAY_AGE_S,
        )

    async def _claimed(self, known: frozenset[str]) -> frozenset[str]:
        """Slices that pods have by ResourceClaims, of which the records are lost (`dra/`).

        Where the kubelet can't be asked, all that are described.
        """
        unknown = await asyncio.to_thread(self._files.described) - known
        if not unknown:
            return unknown
        try:
            return unknown & await self._kubelet_state.claimed()
        except Unavailable:
            return unknown

    async def _drop_nobodys(self, holdings: Sequence[Holding]) -> None:
        """Answers without a pod that the kubelet has not had for two rounds."""
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
