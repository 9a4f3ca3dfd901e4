"""Whose container is about to start: the kubelet names the ids, its state shows who holds them.

The kubelet writes its checkpoint before it calls us; what it has not written yet is waited for. One
container holds the ids, or several of one pod that follow on.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from hamicommon.errors import Unavailable

from hami_node_agent.grants.kubelet_answers import Holding
from hami_node_agent.grants.ports import KubeletState, NodePodApi

# Covers a slow disk. The kubelet gives a plugin 30 s for the call.
KUBELET_STATE_WAIT_S = 3.0
_KUBELET_STATE_POLL_S = 0.1  # PodResources has no watch
_NOBODY = "no container with these devices is in the kubelet's checkpoint or PodResources"

T = TypeVar("T")


class ContainerOwners:
    """Finds the containers that hold ids."""

    def __init__(self, kubelet_state: KubeletState, pods: NodePodApi) -> None:
        self._kubelet_state = kubelet_state
        self._pods = pods

    async def of(self, ids: frozenset[str]) -> tuple[list[Holding], tuple[Holding, ...]]:
        """Who holds exactly these ids, and everything that was read.

        Raises: Unavailable when that can't be known now.
        """

        async def look() -> tuple[list[Holding], tuple[Holding, ...]] | str:
            # The rest of the kubelet's state takes as long to read again, and shows more where the
            # checkpoint is damaged or behind.
            with contextlib.suppress(Unavailable):
                holdings = await self._kubelet_state.checkpointed()
                if owners := self._with_ids(ids, holdings):
                    return owners, holdings
            holdings = await self._kubelet_state.holdings()
            owners = self._with_ids(ids, holdings)
            return (owners, holdings) if owners else _NOBODY

        return await _shown(look)

    async def with_answers(self, ids: frozenset[str]) -> list[Holding]:
        """Who holds exactly these ids, with the answers that they were given.

        Raises: Unavailable when that can't be known now.
        """

        async def look() -> list[Holding] | str:
            owners = self._with_ids(ids, await self._kubelet_state.holdings())
            if owners and all(owner.answer or owner.foreign for owner in owners):
                return owners
            if owners:
                return "the kubelet's checkpoint, which alone has the names, can't be read"
            return _NOBODY

        return await _shown(look)

    async def changed(self, seen: Sequence[Holding], deadline: float) -> None:
        """Returns when the kubelet has admitted somebody else, or at the (monotonic) deadline."""
        while time.monotonic() < deadline:
            await asyncio.sleep(_KUBELET_STATE_POLL_S)
            with contextlib.suppress(Unavailable):
                if set(await self._kubelet_state.holdings()) != set(seen):
                    return

    def _with_ids(self, ids: frozenset[str], holdings: Sequence[Holding]) -> list[Holding]:
        # A dead pod's entry stays in the checkpoint until the kubelet next allocates.
        ended = self._pods.seen().ended
        return [h for h in holdings if h.device_ids == ids and h.pod_uid not in ended]


async def _shown(look: Callable[[], Awaitable[T | str]]) -> T:
    """What `look` finds; a text is why there is nothing yet. Raises: Unavailable with it."""
    deadline = time.monotonic() + KUBELET_STATE_WAIT_S
    while True:
        try:
            found = await look()
            if not isinstance(found, str):
                return found
            problem = found
        except Unavailable as exc:
            problem = str(exc)
        if time.monotonic() > deadline:
            raise Unavailable(f"the container waits: {problem}")
        await asyncio.sleep(_KUBELET_STATE_POLL_S)
