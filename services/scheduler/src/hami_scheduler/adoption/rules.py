"""Decide whether a pod that HAMi started may be adopted, and with which slices.

Pure: `judge(claim, observed, ...)`. The pod's annotation is a claim: any user may have written it,
and it shows what HAMi intended, not what is true. The node's report is the evidence: the devices in
the kubelet's checkpoint, with the limits in the answer of HAMi's device plugin. Both must agree; if
they differ nothing is guessed, unless the operator chose to trust the node. `adopt.py` gathers both
and writes the adopted grants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from hamicommon.domain.allocations import ContainerGrant, DeviceShare
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import GpuUuid, NodeName, PodUid
from hamicommon.domain.requests import PodRequest, Role
from hamicommon.errors import InvalidRequest
from hamicommon.events import HeldContainer
from hamicommon.k8s.annotations import (
    ASSIGNED_NODE,
    MIG_ALLOCATIONS,
    annotations_of,
    decode_pod_devices,
)
from hamicommon.k8s.pod_object import containers_of
from hamicommon.vendors.registry import Vendors

OUR_VENDOR = "NVIDIA"
"""Vendor whose devices our node-agent serves, so that it can confirm them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Pod on a node, with its devices by its annotations."""

    uid: PodUid
    namespace: str
    name: str
    node: NodeName
    """Node of the pod, from spec.nodeName."""
    written_node: str
    """Node that HAMi wrote into the annotation."""
    containers: tuple[tuple[str, Role], ...]
    """All containers in the order of the spec."""
    written: tuple[tuple[DeviceShare, ...], ...] = ()
    """Entries that name a card, in order.

    HAMi loses empty ones, so that their position is not the container's (protocol, TRAP-1).
    """
    problem: str = ""
    """Reason why the annotation can't be read."""
    mig: bool = False
    others: tuple[str, ...] = ()
    """Names of other vendors whose cards the pod has, too."""

    @property
    def full_name(self) -> str:
        """Return the pod as namespace/name."""
        return f"{self.namespace}/{self.name}"


def claim_of(pod: Mapping[str, Any], vendors: Vendors) -> Claim | None:
    """Read what the pod holds; None if it has no node, or no vendor's devices."""
    written = annotations_of(pod)
    node = (pod.get("spec") or {}).get("nodeName")
    vendors_named = [v.name for v in vendors if v.keys.allocated and written.get(v.keys.allocated)]
    if not node or not vendors_named:
        return None
    metadata = pod["metadata"]
    claim = Claim(
        uid=PodUid(metadata["uid"]),
        namespace=str(metadata.get("namespace") or "default"),
        name=str(metadata.get("name") or ""),
        node=NodeName(node),
        written_node=written.get(ASSIGNED_NODE, ""),
        containers=tuple((str(c.get("name", "")), role) for role, c in containers_of(dict(pod))),
        mig=bool(written.get(MIG_ALLOCATIONS)),
        others=tuple(name for name in vendors_named if name != OUR_VENDOR),
    )
    if OUR_VENDOR not in vendors_named:
        return claim
    [vendor] = [v for v in vendors if v.name == OUR_VENDOR]
    try:
        entries = decode_pod_devices(written[vendor.keys.allocated])
    except InvalidRequest as exc:
        return replace(claim, problem=str(exc))
    return replace(claim, written=tuple(tuple(map(_ours, entry)) for entry in entries if entry))


def _ours(share: DeviceShare) -> DeviceShare:
    kind = "" if share.vendor == OUR_VENDOR else share.vendor
    return replace(share, vendor=OUR_VENDOR, type=kind)


_MIG = "MIG-"


class Why(StrEnum):
    """Reason why a pod is not adopted."""

    NO_EVIDENCE = "no-evidence"
    DISAGREE = "disagree"
    UNKNOWN_CARD = "unknown-card"
    WRONG_NODE = "wrong-node"
    MALFORMED = "malformed"
    NOT_HAMI = "not-hami"
    MIG = "mig"
    OTHER_VENDOR = "other-vendor"
    HELD_TWICE = "held-twice"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionResult:
    """Verdict on a pod: adopted with `containers`, or the reason why not."""

    containers: tuple[ContainerGrant, ...] = ()
    refused: Why | None = None
    sentence: str = ""
    """Sentence about the refusal and what to do, or about differences from the node's report."""
    evidence: Mapping[str, Any] = field(default_factory=dict)


def judge(
    claim: Claim,
    observed: Sequence[HeldContainer],
    *,
    silence: str,
    cards: Mapping[GpuUuid, DeviceUsage],
    asked: PodRequest | None,
    held_twice: Mapping[str, frozenset[PodUid]],
    believe_node: bool,
) -> AdoptionResult:
    """Return the verdict on one pod.

    `observed` is what its node reports of this pod, `silence` why it reports nothing; `cards` are
    the ledger's of that node; `asked` is what the pod's spec asks for, None when it can't be read;
    `held_twice` has the device ids that the checkpoint gives to several live pods.
    """
    if claim.written_node != claim.node:
        return _refusal(
            Why.WRONG_NODE,
            f"its annotations name node {claim.written_node or 'nothing'}, and it is on "
            f"{claim.node}; delete it; its controller recreates it",
        )
    if claim.problem:
        return _refusal(Why.MALFORMED, f"its annotation can't be read: {claim.problem}")
    if claim.others:
        vendors = ", ".join(claim.others)
        return _refusal(
            Why.OTHER_VENDOR,
            f"it holds devices of {vendors}, which no HAMi agent can verify; "
            f"drain the node's {vendors} pods before HAMi takes their cards over",
        )
    if not observed:
        return _refusal(Why.NO_EVIDENCE, silence)
    return _compare(claim, observed, cards, asked, held_twice, believe_node)


def _compare(
    claim: Claim,
    observed: Sequence[HeldContainer],
    cards: Mapping[GpuUuid, DeviceUsage],
    asked: PodRequest | None,
    held_twice: Mapping[str, frozenset[PodUid]],
    believe_node: bool,
) -> AdoptionResult:
    by_name = {one.container: one for one in observed}
    holding = [by_name[name] for name, _ in claim.containers if name in by_name]
    if claim.mig or any(card.startswith(_MIG) for one in observed for card in one.visible or ()):
        return _refusal(
            Why.MIG, "its slices are MIG instances, which are not adopted; drain it from this node"
        )
    shared = [id_ for one in observed for id_ in one.device_ids if id_ in held_twice]
    if shared:
        others = ", ".join(sorted(held_twice[shared[0]] - {claim.uid}))
        return _refusal(
            Why.HELD_TWICE,
            f"the kubelet's checkpoint gives device {shared[0]} also to pod {others}; restart the "
            "kubelet, which repairs its checkpoint, and try again",
        )
    if any(one.ours or (one.visible is not None and not _shares_of_answer(one)) for one in holding):
        return _refusal(
            Why.NOT_HAMI,
            "HAMi's device plugin did not allocate the devices of its container; "
            "delete the pod; its controller recreates it",
        )
    found = _shares(claim, holding, cards, asked)
    difference = _difference(claim, holding, found)
    if difference and not (believe_node and all(map(_shares_of_answer, holding))):
        return _refusal(
            Why.DISAGREE,
            f"{difference}; find out who changed it, then delete the pod, or adopt what the "
            f"node reports "
            "with --believe-node",
        )
    granted = {one.container: shares for one, shares in zip(holding, found, strict=True)}
    unknown = sorted({s.uuid for shares in found for s in shares} - cards.keys())
    if unknown:
        return _refusal(
            Why.UNKNOWN_CARD,
            f"card {unknown[0]} is not among the cards that {claim.node}'s agent reports",
        )
    return AdoptionResult(
        containers=tuple(
            ContainerGrant(index=index, name=name, role=role, shares=granted.get(name, ()))
            for index, (name, role) in enumerate(claim.containers)
        ),
        sentence=f"adopted as its node reports: {difference}" if difference else "",
        evidence={
            "containers": [_as_json(one) for one in holding],
            "annotation": [[_entry(share) for share in entry] for entry in claim.written],
        },
    )


def _shares_of_answer(one: HeldContainer) -> tuple[DeviceShare, ...]:
    """Return the slices in the container's Allocate answer; none if HAMi did not give it."""
    core_percent = one.core_percent
    if one.visible is None or not one.memory_mib or core_percent is None:
        return ()
    if len(one.visible) != len(one.memory_mib):
        return ()
    return tuple(
        DeviceShare(
            uuid=GpuUuid(uuid), vendor=OUR_VENDOR, memory_mib=memory_mib, core_percent=core_percent
        )
        for uuid, memory_mib in zip(one.visible, one.memory_mib, strict=True)
    )


def _as_json(one: HeldContainer) -> dict[str, Any]:
    """Return the evidence of the adoption, for the history."""
    return {
        "container": one.container,
        "device_ids": list(one.device_ids),
        "cards": list(one.visible if one.visible is not None else one.cards_of_ids),
        "memory_mib": list(one.memory_mib),
        "core_percent": one.core_percent,
        "answer": one.visible is not None,
    }


def _shares(
    claim: Claim,
    holding: Sequence[HeldContainer],
    cards: Mapping[GpuUuid, DeviceUsage],
    asked: PodRequest | None,
) -> list[tuple[DeviceShare, ...]]:
    """Return the slices per container that the node confirms.

    Where its answer can't be read, the annotation's amounts on the cards of its ids, if they are
    what the pod's spec asks for.
    """
    found = []
    for position, one in enumerate(holding):
        shares = _shares_of_answer(one)
        if one.visible is None and position < len(claim.written):
            written = claim.written[position]
            if _as_asked(one.container, written, cards, asked):
                shares = tuple(s for s in written if s.uuid in one.cards_of_ids)
        found.append(shares)
    return found


def _as_asked(
    container: str,
    written: Sequence[DeviceShare],
    cards: Mapping[GpuUuid, DeviceUsage],
    asked: PodRequest | None,
) -> bool:
    requests = [
        request
        for one in (asked.containers if asked else ())
        for request in one.requests
        if one.name == container and request.vendor == OUR_VENDOR
    ]
    if len(requests) != 1 or requests[0].count != len(written):
        return False
    [request] = requests
    return all(
        share.uuid in cards
        and share.memory_mib == request.memory_mib_on(cards[share.uuid].device.memory_mib)
        and share.core_percent == min(request.core_percent, 100)
        for share in written
    )


def _difference(
    claim: Claim, holding: Sequence[HeldContainer], found: Sequence[tuple[DeviceShare, ...]]
) -> str:
    """Describe how annotation and node differ; empty if they agree."""
    if len(claim.written) != len(holding):
        return (
            f"its annotation names {len(claim.written)} containers with cards, its node "
            f"{len(holding)}"
        )
    for written, one, shares in zip(claim.written, holding, found, strict=True):
        if {_key(s) for s in written} != {_key(s) for s in shares}:
            reported = ", ".join(map(_entry, shares)) or (
                f"cards {', '.join(sorted(set(one.cards_of_ids)))}, and can't read the limits"
            )
            claimed = ", ".join(map(_entry, written))
            return f"container {one.container}: its annotation has {claimed}, its node {reported}"
        if len(written) != len(one.device_ids):
            return (
                f"container {one.container}: its annotation names {len(written)} cards, and the "
                f"kubelet gave it {len(one.device_ids)} device ids"
            )
    return ""


def _key(share: DeviceShare) -> tuple[str, int, int]:
    return (share.uuid, share.memory_mib, share.core_percent)


def _entry(share: DeviceShare) -> str:
    return f"{share.uuid} {share.memory_mib} MiB {share.core_percent} %"


def _refusal(why: Why, sentence: str) -> AdoptionResult:
    return AdoptionResult(refused=why, sentence=sentence)


def held_twice(
    ids_of: Mapping[PodUid, Sequence[str]], live: frozenset[PodUid]
) -> dict[str, frozenset[PodUid]]:
    """Return device ids that the checkpoint gives to more than one live pod."""
    owners: dict[str, set[PodUid]] = {}
    for uid, ids in ids_of.items():
        if uid in live:
            for device_id in ids:
                owners.setdefault(device_id, set()).add(uid)
    return {id_: frozenset(uids) for id_, uids in owners.items() if len(uids) > 1}
