"""Answer the scheduler before each binding: can this node accept a pod?

A pod that is bound while the kubelet or this agent is unavailable fails admission permanently, so
the scheduler waits a second instead. The scheduler's `extender/bind.py` asks and decides. The grant
of the pod comes with the question; a yes means that it is in the book.
"""

from __future__ import annotations

from collections.abc import Callable

from hamicommon.bus.client import Bus
from hamicommon.bus.reader import read
from hamicommon.errors import InvalidRequest
from hamicommon.events import Readiness, ReadinessRequest, readiness_subject
from hamicommon.grants.grant import Grant

from hami_node_agent.deviceplugin.servicer import DevicePluginService

# The kubelet processes the first list after we have sent it; a pod admitted before that finds no
# devices.
SETTLED_S = 1.0


class ReadinessService:
    """Serve `hami.agents.readiness.<node>`."""

    def __init__(
        self,
        bus: Bus,
        plugin: DevicePluginService,
        *,
        node: str,
        reachable: Callable[[], bool],
        not_ready_reason: Callable[[], str],
        on_ready: Callable[[], None],
        take: Callable[[Grant], None],
        late: bool = False,
    ) -> None:
        """`reachable`: whether the kubelet can open our socket; an open stream outlives its file.

        `not_ready_reason`: what else keeps pods from coming here; empty: nothing.
        `on_ready` is called at each yes to a question without a grant: it will follow.
        `take` enters a grant in the book.
        `late`: the order of Allocate calls does not matter here.
        """
        self._bus = bus
        self._plugin = plugin
        self._node = node
        self._reachable = reachable
        self._not_ready_reason = not_ready_reason
        self._on_ready = on_ready
        self._take = take
        self._late = late

    async def run(self) -> None:
        """Serve until cancelled."""
        await self._bus.serve(readiness_subject(self._node), "", self._answer)

    async def _answer(self, _subject: str, data: bytes) -> Readiness:
        not_ready_reason = self._not_ready_reason()
        if not_ready_reason:
            return Readiness(node=self._node, ready=False, reason=not_ready_reason)
        if not self._reachable():
            reason = "its kubelet can't find the device plugin's socket"
            return Readiness(node=self._node, ready=False, reason=reason)
        listened_for_s = self._plugin.listened_for_s()
        if listened_for_s is None or listened_for_s < SETTLED_S:
            reason = "its kubelet has not read the device plugin's devices yet"
            return Readiness(node=self._node, ready=False, reason=reason)
        taken = self._take_grant(data)
        if not taken:
            self._on_ready()
        return Readiness(node=self._node, ready=True, taken=taken, late=self._late)

    def _take_grant(self, data: bytes) -> bool:
        """Keep the grant in the request if there is one; return whether. Raises: InvalidRequest."""
        asked = read(ReadinessRequest, data, "readiness request")
        if asked.grant is None:
            return False
        if asked.grant.node != self._node:
            raise InvalidRequest(f"a grant for node {asked.grant.node} was offered to {self._node}")
        self._take(asked.grant)
        return True
