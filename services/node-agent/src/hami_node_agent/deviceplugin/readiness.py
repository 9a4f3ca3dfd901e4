"""Answers the scheduler's question, asked before each binding: can this node take a pod now?

A pod that is bound while the kubelet or this agent is away fails its admission for good, so the
scheduler rather waits a second. What is asked here is decided there: `allocation/late_binding.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from hamicommon.bus.client import Bus
from hamicommon.events import Readiness, readiness_subject

from hami_node_agent.deviceplugin.servicer import DevicePluginService

# The kubelet works the first list off after we have sent it; a pod that is admitted before finds
# no devices.
SETTLED_S = 1.0


class ReadinessService:
    """Serves `hami.agents.readiness.<node>`."""

    def __init__(
        self,
        bus: Bus,
        plugin: DevicePluginService,
        *,
        node: str,
        reachable: Callable[[], bool],
        not_ready_reason: Callable[[], str],
        on_ready: Callable[[], None],
        late: bool = False,
    ) -> None:
        """`reachable`: whether the kubelet finds our socket; an open stream outlives its file.

        `not_ready_reason`: what else keeps pods from coming here; empty: nothing.
        `on_ready` is called at each yes: a grant will follow.
        `late`: the order of Allocate calls does not matter here.
        """
        self._bus = bus
        self._plugin = plugin
        self._node = node
        self._reachable = reachable
        self._not_ready_reason = not_ready_reason
        self._on_ready = on_ready
        self._late = late

    async def run(self) -> None:
        """Runs until cancelled."""
        await self._bus.serve(readiness_subject(self._node), "", self._answer)

    async def _answer(self, _subject: str, _data: bytes) -> Readiness:
        not_ready_reason = self._not_ready_reason()
        if not_ready_reason:
            return Readiness(node=self._node, ready=False, reason=not_ready_reason)
        if not self._reachable():
            reason = "its kubelet does not find the device plugin's socket"
            return Readiness(node=self._node, ready=False, reason=reason)
        listened_for_s = self._plugin.listened_for_s()
        if listened_for_s is None or listened_for_s < SETTLED_S:
            reason = "its kubelet does not know the device plugin's devices yet"
            return Readiness(node=self._node, ready=False, reason=reason)
        self._on_ready()
        return Readiness(node=self._node, ready=True, late=self._late)
