"""Driver's files under /dev, which containers get if PASS_DEVICE_SPECS is on (protocol 5.7.1)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hamicommon.errors import Unavailable

from hami_node_agent.devices.mig_partition import MigInstance
from hami_node_agent.devices.offer import CardFacts

CONTROL_FILES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


class CardNames:
    """Indexes and files of the node's cards by uuid, updated when cards are added.

    The mappings stay the same objects, so code that has one sees the cards that come.
    """

    def __init__(self, dev_root: Path) -> None:
        self._dev_root = dev_root
        self.index_of: dict[str, int] = {}
        """NVML index by uuid."""
        self.card_files: dict[str, list[tuple[str, str]]] = {}
        """(Container path, host path) of a card's files by uuid."""
        self.control_files: dict[str, str] = {}
        """Host path by container path of those that exist; a reloaded driver may make more."""

    def learn(self, cards: Iterable[CardFacts]) -> None:
        """Add these cards; one that is removed keeps its entry, in case it returns."""
        found = tuple(cards)
        self.index_of.update((card.uuid, card.index) for card in found)
        for card in found:
            if card.minor is not None:
                name = f"nvidia{card.minor}"
                self.card_files[card.uuid] = [(f"/dev/{name}", str(self._dev_root / name))]
        for name in CONTROL_FILES:
            if (self._dev_root / name).exists():
                self.control_files[f"/dev/{name}"] = str(self._dev_root / name)


def mig_files(
    instances: Iterable[MigInstance], dev_root: Path, proc_root: Path
) -> dict[str, list[tuple[str, str]]]:
    """Return by MIG instance (container path, host path) of its card's and capabilities' files.

    The minor numbers of those are in the driver's capabilities under /proc.
    """
    found = {}
    for each in instances:
        names = [f"nvidia{each.minor}"]
        gpu = proc_root / f"driver/nvidia/capabilities/gpu{each.minor}/mig/gi{each.gpu_instance}"
        for access in (gpu / "access", gpu / f"ci{each.compute_instance}" / "access"):
            minor = _capability_minor(access)
            if minor is not None:
                names.append(f"nvidia-caps/nvidia-cap{minor}")
        found[each.uuid] = [(f"/dev/{name}", str(dev_root / name)) for name in names]
    return found


def _capability_minor(access: Path) -> int | None:
    try:
        fields = access.read_text().split()
        return int(fields[fields.index("DeviceFileMinor:") + 1])
    except (OSError, ValueError, IndexError):
        return None


def require_imex(channels: Iterable[int], dev_root: Path) -> None:
    """Check that the IMEX channels have files. Raises: Unavailable if one has none."""
    for channel in channels:
        path = dev_root / "nvidia-caps-imex-channels" / f"channel{channel}"
        if not path.exists():
            raise Unavailable(f"imex_channel_ids: expected channel {channel} and {path} is absent")
