"""How the node's cards are cut, through NVML; `library.py` has the driver loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pynvml
from hamicommon.domain.ids import GpuUuid
from hamicommon.errors import Unavailable

from hami_node_agent.devices.mig_layout import MigInstance, MigLayout, profile_name
from hami_node_agent.devices.offer import CardFacts

_UNSUPPORTED = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


async def read_layout(cards: Sequence[CardFacts], *, timeout_s: float) -> MigLayout:
    """The instances of these cards. Raises: Unavailable."""
    try:
        async with asyncio.timeout(timeout_s):
            return await asyncio.to_thread(_read, cards)
    except TimeoutError as exc:
        raise Unavailable(f"NVML: MIG: no answer within {timeout_s:g} s") from exc
    except pynvml.NVMLError as exc:
        raise Unavailable(f"NVML: MIG: {exc}") from exc


def _read(cards: Sequence[CardFacts]) -> MigLayout:
    mig_cards: set[GpuUuid] = set()
    instances: list[MigInstance] = []
    for card in cards:
        handle = pynvml.nvmlDeviceGetHandleByIndex(card.index)
        if in_mig_mode(handle):
            mig_cards.add(card.uuid)
            instances += _instances(card, handle)
    return MigLayout(
        cards=frozenset(card.uuid for card in cards),
        mig_cards=frozenset(mig_cards),
        instances=tuple(instances),
    )


def in_mig_mode(handle: Any) -> bool:
    """Whether the card is cut into instances; one that can't be is not."""
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    except pynvml.NVMLError as exc:
        if exc.value in _UNSUPPORTED:
            return False
        raise


def _instances(card: CardFacts, handle: Any) -> Iterator[MigInstance]:
    memory_bytes = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except pynvml.NVMLError as exc:
            if exc.value == pynvml.NVML_ERROR_NOT_FOUND:
                continue
            raise
        about = pynvml.nvmlDeviceGetAttributes_v2(mig)
        uuid = pynvml.nvmlDeviceGetUUID(mig)
        yield MigInstance(
            uuid=uuid.decode() if isinstance(uuid, bytes) else str(uuid),
            card=card.uuid,
            profile=profile_name(
                gpu_slices=int(about.gpuInstanceSliceCount),
                compute_slices=int(about.computeInstanceSliceCount),
                memory_mib=int(about.memorySizeMB),
                card_memory_bytes=memory_bytes,
            ),
            gpu_instance=int(pynvml.nvmlDeviceGetGpuInstanceId(mig)),
            compute_instance=int(pynvml.nvmlDeviceGetComputeInstanceId(mig)),
            minor=card.minor,
            numa=card.numa,
        )
