"""Record HAMi's answers for pods that the ledger adopted, so that their containers may restart.

In: grants that came after their Allocate, and the kubelet's state. Out: records marked `foreign`;
with them PreStartContainer knows the container, usage is sampled, and the pod's end is reported.
Nothing of the container is touched: HAMi's mounts and environment stay as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from uuid import UUID, uuid5

from hamicommon.domain.allocations import ContainerGrant
from hamicommon.errors import HamiError
from hamicommon.process.backoff import Backoff

from hami_node_agent.devices.replica_ids import card_of
from hami_node_agent.grants.book import GrantBook, NodeGrant
from hami_node_agent.grants.ports import Holding, KubeletState
from hami_node_agent.grants.records import Record, is_complete
from hami_node_agent.grants.state import NodeState

logger = logging.getLogger(__name__)

# While a pod with a grant is not in the kubelet's checkpoint yet.
RETRY_FIRST_S = 5.0
RETRY_LAST_S = 60.0


class AdoptedAnswers:
    """Keep a record for each adopted container."""

    def __init__(self, state: NodeState, *, kubelet_state: KubeletState) -> None:
        self._state = state
        self._kubelet_state = kubelet_state

    async def run(self) -> None:
        """Check at every change of the grants, until cancelled."""
        backoff = Backoff(RETRY_FIRST_S, RETRY_LAST_S)
        while True:
            seen = self._state.book_changed.version
            try:
                await self.take_up()
            except HamiError as exc:
                logger.warning("Retrying to record adopted answers", extra={"error": str(exc)})
            pause_s = backoff.next_s() if self._waiting() else None
            if await self._state.book_changed.wait(seen, pause_s) != seen:
                backoff.reset()

    async def take_up(self) -> None:
        """Record what the kubelet holds now. Raises: Unavailable if it can't be read."""
        if not self._waiting():
            return
        holdings = await self._kubelet_state.holdings()
        found = foreign_records(self._state.book, holdings, self._state.saved.records.values())
        if found:
            await self._state.change(lambda saved: saved.with_records(found))
            for record in found:
                logger.info(
                    "Recorded an adopted container",
                    extra={
                        "pod_uid": record.pod_uid,
                        "container": record.container,
                        "cards": list(record.cards),
                    },
                )

    def _waiting(self) -> bool:
        """Return whether a grant lacks records."""
        records = self._state.saved.records.values()
        return any(
            grant.answered and not is_complete(grant, records)
            for grant in self._state.book.grants.values()
        )


def foreign_records(
    book: GrantBook, holdings: Iterable[Holding], records: Iterable[Record]
) -> list[Record]:
    """Return records for HAMi's answers that the ledger adopted and that have none yet.

    An answer that shows other cards than were adopted gets none: its container may not start.
    """
    known = {(record.pod_uid, record.container) for record in records if record.allocation_id}
    found = []
    for holding in holdings:
        grant = book.of(holding.pod_uid)
        granted = grant.container(holding.container) if grant and grant.answered else None
        if grant is None or granted is None or holding.answer is not None:
            continue
        if (holding.pod_uid, holding.container) not in known and _shows(holding, granted):
            found.append(_foreign(holding, grant, granted))
    return found


def _shows(holding: Holding, granted: ContainerGrant) -> bool:
    if holding.foreign is not None:
        shown = set(holding.foreign.visible)
    else:
        # Only PodResources could be read: adopted then were the cards of the ids.
        shown = {str(card_of(device_id)) for device_id in holding.device_ids}
    return shown == {str(share.uuid) for share in granted.shares}


def _foreign(holding: Holding, grant: NodeGrant, granted: ContainerGrant) -> Record:
    name = f"{holding.pod_uid}_{holding.container}"
    return Record(
        nonce=str(uuid5(_FOREIGN, name)),
        device_ids=holding.device_ids,
        allocation_id=grant.allocation_id,
        pod_uid=grant.pod_uid,
        namespace=grant.namespace,
        pod_name=grant.pod_name,
        container=granted.name,
        role=granted.role,
        token=grant.token,
        shares=granted.shares,
        foreign=True,
        cache_dir=name if holding.foreign is None else holding.foreign.cache_dir,
    )


_FOREIGN = UUID("c5d9a1de-5b0e-4c0f-9a53-5b8c8f0f9d11")
"""Namespace of UUIDs from which nonces of answers without one are made; an arbitrary constant."""
