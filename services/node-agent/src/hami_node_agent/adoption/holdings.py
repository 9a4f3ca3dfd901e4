"""Answer the scheduler's question which pods hold devices on this node, for adoption.

In: the kubelet's checkpoint and PodResources. Out: the reply on `hami.agents.holdings.<node>`; the
scheduler's `hami_scheduler.adoption` judges with it. Nothing is decided here, and nothing here
comes from a field that a user can write.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from hamicommon.bus.client import Bus
from hamicommon.domain.ids import PodUid
from hamicommon.events import HeldContainer, NodeHoldings, holdings_subject

from hami_node_agent.devices.replica_ids import card_of
from hami_node_agent.grants.ports import Holding, KubeletState, NodePodApi
from hami_node_agent.grants.state import NodeState


class HoldingsService:
    """Serve `hami.agents.holdings.<node>`."""

    def __init__(
        self,
        bus: Bus,
        state: NodeState,
        *,
        kubelet_state: KubeletState,
        pods: NodePodApi,
        node: str,
    ) -> None:
        self._bus = bus
        self._state = state
        self._kubelet_state = kubelet_state
        self._pods = pods
        self._node = node

    async def run(self) -> None:
        """Serve until cancelled."""
        await self._bus.serve(holdings_subject(self._node), "", self.answer)

    async def answer(self, _subject: str, _data: bytes) -> NodeHoldings:
        """Answer with what the kubelet holds now."""
        reading = await self._kubelet_state.read()
        ended = self._pods.snapshot().ended
        return NodeHoldings(
            node=self._node,
            read_at=datetime.now(UTC),
            containers=tuple(self._held_container(holding, ended) for holding in reading.holdings),
            problems=reading.problems,
            readable=reading.readable,
        )

    def _held_container(self, holding: Holding, ended: frozenset[PodUid]) -> HeldContainer:
        pod = self._pods.name_of(holding.pod_uid)
        foreign = holding.foreign
        by_index = {str(card.index): str(card.uuid) for card in self._state.cards.values()}
        return HeldContainer(
            pod_uid=holding.pod_uid,
            namespace=holding.namespace if pod is None else pod.namespace,
            pod_name=holding.pod_name if pod is None else pod.name,
            container=holding.container,
            device_ids=tuple(sorted(holding.device_ids)),
            cards_of_ids=tuple(sorted(str(card_of(each)) for each in holding.device_ids)),
            ended=holding.pod_uid in ended,
            ours=holding.answer is not None or self._has_record(holding),
            visible=None if foreign is None else _uuids(foreign.visible, by_index),
            memory_mib=() if foreign is None else foreign.memory_mib,
            core_percent=None if foreign is None else foreign.core_percent,
        )

    def _has_record(self, holding: Holding) -> bool:
        """Return allocations of this agent that the checkpoint lacks."""
        return any(
            record.belongs_to(holding.pod_uid, holding.container) and not record.foreign
            for record in self._state.saved.records.values()
        )


def _uuids(visible: tuple[str, ...], by_index: Mapping[str, str]) -> tuple[str, ...]:
    """Return uuids of cards that are named by index; unknown names are unchanged."""
    return tuple(by_index.get(card, card) for card in visible)
