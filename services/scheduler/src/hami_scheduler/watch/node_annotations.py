"""Parse cards from a Node object without our agent (architecture 2.5).

Pure: every vendor reads its own part (annotation or capacity). A malformed part is named, and
leaves the known cards of that vendor unchanged; a vendor whose device plugin does not live has no
cards there. `annotated_nodes.py` writes the result into the ledger.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.annotations import AGENT, annotations_of
from hamicommon.k8s.quantities import parse_int
from hamicommon.k8s.types import JsonMapping
from hamicommon.vendors.interface.vendor import Vendor

ANSWER_S = 60
"""Time that a device plugin has to answer `Requesting_<time>` (protocol 2.4)."""
_ASKING = "Requesting"
_TIME = "%Y-%m-%d %H:%M:%S"
"""Format of the time, which HAMi writes in its own unnamed time zone; ours is UTC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAnnotations:
    """Cards and handshakes of one node."""

    devices: tuple[GpuDevice, ...] = ()
    pair_scores: Mapping[GpuUuid, Mapping[GpuUuid, int]] = field(default_factory=dict)
    malformed: Mapping[str, str] = field(default_factory=dict)
    """Errors by vendor; the last valid cards of these vendors stay."""
    questions: Mapping[str, str] = field(default_factory=dict)
    """Handshake annotations that are to be set on the node."""
    asked: bool = False
    """Whether a recent question is open, so that the result may change without a change."""

    @property
    def empty(self) -> bool:
        """Return whether it shows no card and nothing malformed."""
        return not (self.devices or self.malformed)


def has_agent(node: JsonMapping) -> bool:
    """Return whether an agent of ours reports this node's cards."""
    return AGENT in annotations_of(node)


def lives(node: JsonMapping, vendors: Iterable[Vendor]) -> bool | None:
    """Return whether the node lives, by conditions and the kubelet's count of cards; None: unknown.

    The kubelet sets `allocatable` to 0 when a device plugin of its has ended.
    """
    status = node.get("status") or {}
    ready = [c.get("status") for c in status.get("conditions") or () if c.get("type") == "Ready"]
    if not ready:
        return None
    capacity, allocatable = status.get("capacity") or {}, status.get("allocatable") or {}
    lost = any(
        parse_int(capacity.get(name, 0)) and not parse_int(allocatable.get(name, 0))
        for name in {vendor.resources.count for vendor in vendors}
    )
    return ready == ["True"] and not lost


def read_annotations(
    node: JsonMapping, vendors: Iterable[Vendor], now: datetime
) -> NodeAnnotations:
    """Parse the cards of all vendors; those of a node with our agent are ignored."""
    if has_agent(node):
        return NodeAnnotations()
    devices: list[GpuDevice] = []
    pair_scores: dict[GpuUuid, Mapping[GpuUuid, int]] = {}
    malformed: dict[str, str] = {}
    questions: dict[str, str] = {}
    asked = False
    annotations = annotations_of(node)
    for vendor in vendors:
        try:
            cards = vendor.node_devices(dict(node))
            scores = vendor.node_pair_scores(dict(node)) if cards else {}
        except InvalidRequest as exc:
            malformed[vendor.name] = str(exc)
            continue
        if not cards:
            continue
        waiting = False
        # Only where the vendor's plugin wrote its cards: HAMi stamps every node (TRAP-11).
        if vendor.keys.handshake and vendor.keys.register in annotations:
            value = annotations.get(vendor.keys.handshake, "")
            waiting = _is_unanswered(value, now)
            asked |= waiting
            if _ASKING not in value:
                questions[vendor.keys.handshake] = question(now)
        if waiting or vendor.plugin_alive(dict(node)):
            devices.extend(cards)
            pair_scores.update(scores)
    return NodeAnnotations(
        devices=tuple(devices),
        pair_scores=pair_scores,
        malformed=malformed,
        questions=questions,
        asked=asked,
    )


def question(now: datetime) -> str:
    """Return the handshake's value, to which the plugin answers by any other value."""
    return f"{_ASKING}_{now.astimezone(UTC).strftime(_TIME)}"


def _is_unanswered(value: str, now: datetime) -> bool:
    """Return whether a question may still be answered, or has an unreadable time."""
    if _ASKING not in value:
        return False
    _, _, text = value.partition("_")
    try:
        asked_at = datetime.strptime(text, _TIME).replace(tzinfo=UTC)
    except ValueError:
        return True
    return now < asked_at + timedelta(seconds=ANSWER_S)


def looks(node: JsonMapping) -> tuple[object, ...]:
    """Return all parts of a Node on which the result depends, except the time."""
    status = node.get("status") or {}
    metadata = node["metadata"]
    return (
        metadata.get("annotations") or {},
        metadata.get("labels") or {},
        status.get("capacity") or {},
        status.get("allocatable") or {},
    )
