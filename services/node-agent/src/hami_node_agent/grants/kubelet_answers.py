"""What the kubelet has of a container: the ids that it holds, and the answer that it was given.

`adapters/kubelet` reads it from the checkpoint and from PodResources; `ownership.py` decides by it.
"""

from __future__ import annotations

from dataclasses import dataclass

from hamicommon.domain.ids import GpuUuid


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAnswer:
    """Our answer, as the kubelet keeps it in its checkpoint."""

    nonce: str
    cards: tuple[GpuUuid, ...]
    cache_dir: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignAnswer:
    """Another device plugin's answer (HAMi's, before us), as the kubelet keeps it."""

    visible: tuple[str, ...]
    """Cards that the container sees, as the plugin names them: uuids, indexes or MIG uuids."""
    memory_mib: tuple[int, ...]
    """HAMi's limit for each visible card, by position; empty: the answer is none of HAMi's."""
    core_percent: int | None
    cache_dir: str
    """Name of the directory with its shared region, under `$HOOK_PATH/vgpu/containers`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What the kubelet has of one container: which ids it holds, and our answer's nonce."""

    pod_uid: str
    container: str
    device_ids: frozenset[str]
    namespace: str = ""
    pod_name: str = ""
    answer: KeptAnswer | None = None
    """Ours. None where only PodResources is there: it does not show answers."""
    foreign: ForeignAnswer | None = None
    """Another plugin's."""
