"""Asks the scheduler for grants of pods that came to this node past it (unmanaged_pods=adopt).

Allocate does not name its pod, so such a container was answered without limits
(`allocate.py`); before it starts, PreStartContainer knows its pod and comes here. The scheduler
grants the cards that the kubelet gave, if the ledger has room; its answer is final for this try.
"""

from __future__ import annotations

from collections.abc import Sequence

from hamicommon.bus.reader import read
from hamicommon.errors import InvalidRequest, Unavailable
from hamicommon.events import (
    TakenContainer,
    UnmanagedReply,
    UnmanagedRequest,
    unmanaged_subject,
)

from hami_node_agent.grants.feed import node_grant
from hami_node_agent.grants.kubelet_answers import Holding
from hami_node_agent.grants.ownership import record_of
from hami_node_agent.grants.ports import NodePodApi, RequestBus
from hami_node_agent.grants.state import NodeState

# One read of the pod, one transaction and one patch there; the kubelet gives us 30 s.
ASK_TIMEOUT_S = 10.0


class UnmanagedPods:
    """Gets grants for them."""

    def __init__(self, bus: RequestBus, state: NodeState, *, pods: NodePodApi, node: str) -> None:
        self._bus = bus
        self._state = state
        self._pods = pods
        self._node = node

    async def ask(self, owner: Holding, holdings: Sequence[Holding]) -> str:
        """Gets a grant into the book for the pod that holds this; else returns why there is none.

        Raises: Unavailable when nobody answers, InvalidRequest when the answer can't be read.
        """
        pod = self._pods.name_of(owner.pod_uid)
        if pod is None:
            raise Unavailable(f"pod {owner.pod_uid} is not known at the API server yet")
        records = tuple(self._state.saved.records.values())
        taken = []
        for holding in holdings:
            record = record_of(holding, records)
            if holding.pod_uid == owner.pod_uid and record is not None:
                cards = tuple(str(card) for card in record.cards)
                taken.append(TakenContainer(container=holding.container, uuids=cards))
        reply = await self._bus.request(
            unmanaged_subject(self._node),
            UnmanagedRequest(
                node=self._node,
                pod_uid=pod.uid,
                namespace=pod.namespace,
                pod_name=pod.name,
                containers=tuple(taken),
            ),
            timeout_s=ASK_TIMEOUT_S,
        )
        return await entered(self._state, reply, pod_uid=pod.uid, node=self._node)


async def entered(state: NodeState, reply: bytes, *, pod_uid: str, node: str) -> str:
    """Puts the grant of an `UnmanagedReply` into the book; returns why there is none, or nothing.

    Raises: InvalidRequest when it can't be read or is another pod's, Unavailable.
    """
    answer = read(UnmanagedReply, reply, "reply about a pod's grant")
    if answer.grant is None:
        return answer.refused
    grant = answer.grant
    if grant.pod_uid != pod_uid or grant.node != node:
        raise InvalidRequest(f"asked for a grant of {pod_uid}, answered with {grant.pod_uid}'s")
    known = node_grant(grant)
    state.book = state.book.announced(known)
    await state.heard([known])
    return ""
