"""Keys and values of HAMi's annotations, byte for byte, and of our own.

Pure conversion between text and domain types. The scheduler writes pod annotations before the
binding, the node-agent those of the node; foreign device plugins and HAMi's tools read both. Users'
annotations and the table of all pod annotations are in `pod_annotations.py`; the node register's
formats are in `node_register.py` and are re-exported here. Source: protocol 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hamicommon.clipping import clip
from hamicommon.domain.allocations import ContainerGrant, DeviceShare
from hamicommon.domain.ids import GpuUuid, NodeName
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.mig import card_of
from hamicommon.k8s.node_register import (
    INT32_MAX,
    decode_pair_scores,
    decode_register,
    encode_pair_scores,
    encode_register,
)

__all__ = [
    "NodeLockValue",
    "annotations_of",
    "binding_annotations",
    "decode_cordon",
    "decode_node_lock",
    "decode_pair_scores",
    "decode_pod_devices",
    "decode_register",
    "encode_node_lock",
    "encode_pair_scores",
    "encode_pod_devices",
    "encode_register",
    "is_true",
    "limit_lengths",
    "split_list",
]

# Pod: written by the scheduler.
ASSIGNED_NODE = "hami.io/vgpu-node"
"""Annotation of a pod with its node; the label of this name has the same value."""
ASSIGNED_TIME = "hami.io/vgpu-time"
MAX_LABEL = 63
"""Maximum characters of a label's value."""
BIND_PHASE = "hami.io/bind-phase"
BIND_TIME = "hami.io/bind-time"
MIG_ALLOCATIONS = "hami.io/vgpu-mig-allocations"
NVIDIA_TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
NVIDIA_ALLOCATED = "hami.io/vgpu-devices-allocated"

# Pod: ours.
GRANT = "hami.io/grant"
"""Annotation with the signed grant, see `hamicommon.grants.grant`."""
TRACEPARENT = "hami.io/traceparent"
CREATED_BY = "hami.io/created-by"
"""Annotation with the user who created the pod; the webhook writes it and drops the author's."""
RETRY_AT = "hami.io/retry-at"
CLAIM_SHAPE = "hami.io/claim-shape"
"""Annotation with the contents of a converted pod's ResourceClaimTemplate, by the webhook."""
KUEUE_WORKLOAD = "hami.io/kueue-workload"
"""Annotation with the uid of the Workload for which cards are kept; written by Kueue for us."""

# Node.
NVIDIA_REGISTER = "hami.io/node-nvidia-register"
NVIDIA_PAIR_SCORES = "hami.io/node-nvidia-score"
NVIDIA_HANDSHAKE = "hami.io/node-handshake"
NODE_LOCK = "hami.io/mutex.lock"
BINDING = "hami.io/binding"
"""Annotation of a Node with the way its containers get slices: `late: ...` or `lock: ...`."""
AGENT = "hami.io/node-agent"
"""Annotation of a Node whose cards our agent reports; the register annotation is only a copy.

To go back to other device plugins, remove it.
"""
DEVICE_CORDON = "hami.io/device-cordon"
"""Annotation of a Node with the uuids of cards that are closed for new slices."""

MAX_CHARACTERS = 16 * 1024
"""Maximum length of an annotation that chooses cards, which is some 360 uuids.

A request is stored with its decision and allocation, and an object may have annotations of 256 KiB.
"""

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})

PHASE_ALLOCATING = "allocating"
PHASE_SUCCESS = "success"
PHASE_FAILED = "failed"


def annotations_of(obj: Mapping[str, Any]) -> dict[str, str]:
    """Return the annotations of a Kubernetes object; empty if it has none."""
    return (obj.get("metadata") or {}).get("annotations") or {}


class _BoundedAnnotations(Mapping[str, str]):
    """Mapping of annotations that raises when a value is read that is too long."""

    __slots__ = ("_written",)

    def __init__(self, written: Mapping[str, str]) -> None:
        self._written = written

    def __getitem__(self, key: str) -> str:
        value = self._written[key]
        if len(value) > MAX_CHARACTERS:
            raise InvalidRequest(
                f"annotation {clip(key)} has {len(value)} characters, more than "
                f"{MAX_CHARACTERS}; it begins with '{clip(value, 64)}'"
            )
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._written)

    def __len__(self) -> int:
        return len(self._written)


def limit_lengths(written: Mapping[str, str]) -> Mapping[str, str]:
    """Return the annotations for readers that store them (requests, decisions, allocations).

    Reading one that is longer than MAX_CHARACTERS raises InvalidRequest, with its name.
    """
    if all(len(value) <= MAX_CHARACTERS for value in written.values()):
        return written
    return _BoundedAnnotations(written)


def is_true(value: str) -> bool:
    """Return whether Go's ParseBool takes the value as true."""
    return value in _TRUE


def split_list(value: str) -> tuple[str, ...]:
    """Return the trimmed entries of a comma list; empty for a blank value.

    Empty entries are kept: stray commas name nothing, which is not the same as no value.
    """
    return tuple(entry.strip() for entry in value.split(",")) if value.strip() else ()


def encode_pod_devices(containers: Sequence[ContainerGrant], vendor: str) -> str:
    """Encode the slices of one vendor: `uuid,vendor,memory,cores:` per card, `;` per container.

    A container without a card is an empty entry, so the position is the container's index. (HAMi
    loses those entries for most vendors; its decoder and plugins take both.)
    """
    return "".join(
        "".join(
            f"{share.uuid},{share.type or share.vendor},{share.memory_mib},{share.core_percent}:"
            for share in container.shares
            if share.vendor == vendor
        )
        + ";"
        for container in containers
    )


def decode_pod_devices(text: str) -> tuple[tuple[DeviceShare, ...], ...]:
    """Decode slices per container, as written by `encode_pod_devices` or by HAMi.

    HAMi's plugin adds a `;` each time it rewrites the value, so there may be more (empty)
    containers at the end than the pod has.

    Raises: InvalidRequest when an entry lacks fields or holds no numbers.
    """
    pieces = text.split(";")
    if pieces[-1] == "":
        pieces.pop()
    return tuple(
        tuple(_share(entry) for entry in piece.split(":") if "," in entry) for piece in pieces
    )


def _share(entry: str) -> DeviceShare:
    parts = entry.split(",")
    if len(parts) < 4:
        raise InvalidRequest(
            "pod annotation format error, missing fields, do not use nodeName in task spec: "
            f"{entry!r} is not uuid,type,memory,cores"
        )
    try:
        memory, core = int(parts[2]), int(parts[3])
    except ValueError as exc:
        raise InvalidRequest(
            f"pod annotation format error: memory and cores of {entry!r} are not whole numbers"
        ) from exc
    if not (0 <= memory <= INT32_MAX and 0 <= core <= INT32_MAX):
        raise InvalidRequest(
            f"pod annotation format error: memory and cores of {entry!r} are not from 0 to "
            f"{INT32_MAX}"
        )
    return DeviceShare(
        uuid=card_of(parts[0]), vendor=parts[1], memory_mib=memory, core_percent=core
    )


def binding_annotations(
    node: NodeName, *, filtered_at: datetime, bound_at: datetime
) -> dict[str, str]:
    """Return HAMi's annotations for a placed pod that no vendor writes."""
    return {
        ASSIGNED_NODE: node,
        ASSIGNED_TIME: _unix_s(filtered_at),
        BIND_PHASE: PHASE_ALLOCATING,
        BIND_TIME: _unix_s(bound_at),
    }


def node_label(node: NodeName) -> dict[str, str]:
    """Return the label of a placed pod; none if the node's name is too long for a label."""
    return {ASSIGNED_NODE: node} if len(node) <= MAX_LABEL else {}


def _unix_s(at: datetime) -> str:
    return str(int(at.timestamp()))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLockValue:
    """Content of the annotation `hami.io/mutex.lock`; older versions name no pod."""

    at: datetime
    namespace: str = ""
    pod_name: str = ""

    @property
    def names_pod(self) -> bool:
        """Whether the value names a pod; any process may release a lock that names none."""
        return bool(self.pod_name)


def encode_node_lock(*, at: datetime, namespace: str, pod_name: str) -> str:
    """Return `<RFC3339>,<namespace>,<pod name>`, in UTC with whole seconds."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ},{namespace},{pod_name}"


def decode_node_lock(value: str) -> NodeLockValue:
    """Parse both forms of the node lock.

    Raises: InvalidRequest when it is neither.
    """
    parts = value.split(",")
    try:
        at = datetime.fromisoformat(parts[0])
    except ValueError as exc:
        raise InvalidRequest(f"{NODE_LOCK}: {parts[0]!r} is not an RFC 3339 time") from exc
    if len(parts) not in (1, 3) or at.tzinfo is None:
        raise InvalidRequest(f"{NODE_LOCK}: {value!r} is not <RFC3339 time>,<namespace>,<pod name>")
    return (
        NodeLockValue(at=at)
        if len(parts) == 1
        else NodeLockValue(at=at, namespace=parts[1], pod_name=parts[2])
    )


def decode_cordon(value: str) -> frozenset[GpuUuid]:
    """Parse the entries of `hami.io/device-cordon`, which closes cards for new slices.

    Entries are uuids, as in HAMi, or other names that `hamicommon.domain.devices` accepts.
    """
    return frozenset(GpuUuid(uuid) for uuid in split_list(value) if uuid)
