"""Pods that have whole cards only, which may run without libvgpu.

Nobody else has a part of their cards, so there is no limit that the library would hold; without it
programs reach the driver directly, and NVLink's peer-to-peer access works as on a plain node. Who
has a part of a card, or shares one, never does. HAMi's variable states what a container wants.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hamicommon.domain.allocations import DeviceShare
from hamicommon.domain.devices import GpuDevice
from hamicommon.domain.ids import GpuUuid
from hamicommon.k8s.annotations import is_true
from hamicommon.vendors.nvidia.guarded import CONTROL_ENV

from hami_node_agent.allocation.response import AnswerPolicy

NOT_WHOLE = (
    "and its pod has not whole cards only any more; delete the pod, its controller makes a new one"
)


def are_whole_cards(shares: Iterable[DeviceShare], cards: Mapping[GpuUuid, GpuDevice]) -> bool:
    """Whether each share is all of its card's memory, without a limit of cores."""
    every = tuple(shares)
    return bool(every) and all(_is_whole(share, cards.get(share.uuid)) for share in every)


def runs_plain(
    shares: Iterable[DeviceShare],
    cards: Mapping[GpuUuid, GpuDevice],
    env: Mapping[str, str],
    policy: AnswerPolicy,
) -> bool:
    """Whether a container is to run without the library; `shares`: of all containers of its pod."""
    asked = env.get(CONTROL_ENV)
    wanted = policy.whole_cards_plain if asked is None else is_true(asked)
    return wanted and policy.may_be_plain and are_whole_cards(shares, cards)


def _is_whole(share: DeviceShare, card: GpuDevice | None) -> bool:
    return (
        card is not None
        and not share.detail
        and share.memory_mib >= card.memory_mib
        and share.core_percent in (0, 100)
    )
