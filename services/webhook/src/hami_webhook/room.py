"""Check in a separate thread whether the cluster's idle cards fit a pod.

Admission waits for an answer for `ROOM_TIMEOUT_S` and continues without one: whether a pod could
ever fit is advice, and its cost grows with the pod and the cluster. Only the thread uses the cards,
so they need no lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from hamicommon.admission.mutation import Room, room_for
from hamicommon.admission.verdicts import Knowledge
from hamicommon.domain.requests import PodRequest

ROOM_TIMEOUT_S = 0.2
"""Time limit of the check, within the 5 s that the API server gives a review."""


class RoomThread:
    """Thread that reads and changes the idle cards."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="idle-cards")

    async def run(self, change: Callable[[], None]) -> None:
        """Call `change` in the thread and wait for it."""
        await asyncio.get_running_loop().run_in_executor(self._thread, change)

    async def ask(self, request: PodRequest, known: Knowledge) -> Room:
        """Return whether idle cards fit; unknown if that takes longer than `ROOM_TIMEOUT_S`."""
        loop = asyncio.get_running_loop()
        asked = loop.run_in_executor(self._thread, room_for, request, known)
        try:
            # A call that has not started by then is cancelled with it.
            return await asyncio.wait_for(asked, ROOM_TIMEOUT_S)
        except TimeoutError:
            return Room(unknown=f"counting the cards took more than {ROOM_TIMEOUT_S:g} s")

    def close(self) -> None:
        """End the thread after its present call."""
        self._thread.shutdown(wait=False, cancel_futures=True)
