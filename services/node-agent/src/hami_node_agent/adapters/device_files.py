"""The driver's files under /dev, answered when PASS_DEVICE_SPECS is on (protocol sheet 5.7.1)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hamicommon.errors import Unavailable

from hami_node_agent.domain.cards import CardFacts

CONTROL_FILES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


def control_files(dev_root: Path) -> dict[str, str]:
    """Container path -> host path of those control files that exist."""
    return {
        f"/dev/{name}": str(dev_root / name) for name in CONTROL_FILES if (dev_root / name).exists()
    }


def card_files(cards: Iterable[CardFacts], dev_root: Path) -> dict[str, list[tuple[str, str]]]:
    """Card uuid -> (container path, host path) of its files."""
    return {
        card.uuid: [(f"/dev/nvidia{card.minor}", str(dev_root / f"nvidia{card.minor}"))]
        for card in cards
        if card.minor is not None
    }


def require_imex(channels: Iterable[int], dev_root: Path) -> None:
    """Raises: Unavailable when a channel has no file on this node."""
    for channel in channels:
        path = dev_root / "nvidia-caps-imex-channels" / f"channel{channel}"
        if not path.exists():
            raise Unavailable(f"imex_channel_ids: channel {channel} is wanted and {path} is absent")
