"""Records for answers of another device plugin that the ledger has adopted.

Pure: the grants, what the kubelet shows, and our records. `adopted.py` writes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID, uuid5

from hamicommon.domain.allocations import ContainerGrant

from hami_node_agent.devices.replica_ids import card_of
from hami_node_agent.grants.book import GrantBook, NodeGrant
from hami_node_agent.grants.kubelet_answers import Holding
from hami_node_agent.grants.records import Record


def foreign_records(
    book: GrantBook, holdings: Iterable[Holding], records: Iterable[Record]
) -> list[Record]:
    """Records for answers of HAMi's that the ledger adopted and that we have not recorded yet.

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
"""Namespace of nonces of answers that have none; any constant will do."""
