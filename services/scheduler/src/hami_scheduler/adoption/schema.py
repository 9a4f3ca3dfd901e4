"""Request and answer of `POST /v1/adopt` as JSON; `adopt.py` fills it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hamicommon.domain.allocations import ContainerGrant, Footprint
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import GpuUuid, NodeName, PodUid
from hamicommon.errors import InvalidRequest
from hamicommon.events import HeldContainer

from hami_scheduler.adoption.claims import Claim
from hami_scheduler.adoption.rules import Why


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The operator's request."""

    apply: bool = False
    nodes: frozenset[NodeName] = frozenset()
    """Empty: all."""
    believe_node: bool = False

    @classmethod
    def parse(cls, body: object) -> Wanted:
        """Reads the request's body. Raises: InvalidRequest."""
        if not isinstance(body, dict):
            raise InvalidRequest('{"apply": false, "nodes": [], "believe_node": false} is wanted')
        unknown = body.keys() - {"apply", "nodes", "believe_node"}
        if unknown:
            raise InvalidRequest(f"{sorted(unknown)[0]}: apply, nodes and believe_node are wanted")
        for key in ("apply", "believe_node"):
            if not isinstance(body.get(key, False), bool):
                raise InvalidRequest(f"{key} is {body[key]!r}: true or false is wanted")
        nodes = body.get("nodes") or []
        if not isinstance(nodes, list) or not all(isinstance(name, str) for name in nodes):
            raise InvalidRequest(f"nodes is {nodes!r}: a list of names of nodes is wanted")
        return cls(
            apply=bool(body.get("apply")),
            nodes=frozenset(NodeName(name) for name in nodes),
            believe_node=bool(body.get("believe_node")),
        )


@dataclass(slots=True, kw_only=True)
class NodeCase:
    """One node while it is looked at: claims, its agent's report, and the rows of the answer."""

    node: NodeName
    claims: list[Claim]
    held: dict[PodUid, list[HeldContainer]] = field(default_factory=dict)
    silence: str = ""
    problems: tuple[str, ...] = ()
    rows: list[dict[str, Any]] = field(default_factory=list)
    taken: list[Footprint] = field(default_factory=list)
    """Amounts that a dry run would add."""


def pod_row(
    claim: Claim,
    outcome: str,
    containers: Sequence[ContainerGrant],
    sentence: str,
    *,
    why: Why | None = None,
) -> dict[str, Any]:
    """One pod of the answer; `outcome` is adopted, would adopt, held or refused."""
    return {
        "namespace": claim.namespace,
        "name": claim.name,
        "uid": claim.uid,
        "node": claim.node,
        "outcome": outcome,
        "why": why,
        "sentence": sentence,
        "slices": [
            {
                "container": container.name,
                "uuid": share.uuid,
                "memory_mib": share.memory_mib,
                "core_percent": share.core_percent,
            }
            for container in containers
            for share in container.shares
        ],
    }


def overfull(case: NodeCase, cards: Mapping[GpuUuid, DeviceUsage]) -> Iterator[dict[str, Any]]:
    """Cards that hold more than they have, now or after what a dry run would add."""
    more: dict[GpuUuid, Counter[str]] = defaultdict(Counter)
    for taken in case.taken:
        more[taken.uuid] += Counter(
            slots=taken.slots, memory_mib=taken.memory_mib, core_percent=taken.core_percent
        )
    for card, usage in cards.items():
        device, added = usage.device, more[card]
        used = {
            "slots": usage.used_slots + added["slots"],
            "memory_mib": usage.used_memory_mib + added["memory_mib"],
            "core_percent": usage.used_core_percent + added["core_percent"],
        }
        has = {
            "slots": device.slots,
            "memory_mib": device.memory_mib,
            "core_percent": device.core_percent,
        }
        if any(used[key] > has[key] for key in has):
            yield {"node": case.node, "uuid": card, "used": used, "has": has}


def unaccounted(case: NodeCase) -> Iterator[dict[str, Any]]:
    """Cards that refused pods hold all the same, so that the ledger takes them for emptier."""
    refused = {row["uid"]: row for row in case.rows if row["outcome"] == "refused"}
    cards: dict[str, list[str]] = defaultdict(list)
    for uid, held in case.held.items():
        if uid in refused:
            row = refused[uid]
            for card in sorted({c for one in held for c in one.visible or one.cards_of_ids}):
                cards[card].append(f"{row['namespace']}/{row['name']}")
    for card, pods in sorted(cards.items()):
        yield {"node": case.node, "uuid": card, "pods": sorted(pods)}
