"""Admission's edits of a request for Ascend chips (protocol 1.16).

Memory is rounded up to a template of the chip, so that what the scheduler counts is what the chip
can be cut into. All of it is editing of the given container; `ascend.py` has read the amounts.
"""

from __future__ import annotations

from hamicommon.device_config import VnpuChip, VnpusConfig, VnpuTemplate
from hamicommon.domain.requests import DeviceRequest
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.types import Json
from hamicommon.vendors.interface import amounts
from hamicommon.vendors.interface.guarded import GuardedVariable
from hamicommon.vendors.interface.standard import set_env
from hamicommon.vendors.interface.vendor import Admitted

VISIBLE_ENV = "ASCEND_VISIBLE_DEVICES"


ASCEND_VISIBLE = GuardedVariable(
    name=VISIBLE_ENV,
    harmless=lambda value: not value,
    effect="chips come with their resource and no other way",
    without_card=True,
    instead="",
)
"""Variable by which the Ascend runtime gives chips."""


def template_for(chip: VnpuChip, memory_mib: int) -> VnpuTemplate | None:
    """The smallest template with that much memory; None: only a whole chip has, if any."""
    return next((t for t in chip.templates if t.memory >= memory_mib), None)


def admit(
    container: Json,
    pod: Json,
    request: DeviceRequest | None,
    *,
    chip: VnpuChip,
    config: VnpusConfig,
    soft: bool,
) -> Admitted:
    """Fills in one container for one chip.

    Args: request: what the container asks for; soft: the pod asks for soft slices.
    Raises: InvalidRequest naming container, resource, value and what would be right.
    """
    if not amounts.asks(container, chip.resource_name, limits_only=True):
        hide_chips(container, chip, config)
        return Admitted(wants=False)
    count = 0 if request is None else request.count
    count = _in_pairs(container, chip, count) if chip.super_pod else count
    cores = amounts.cores(container, chip.resource_core_name, default=0)
    if cores and not soft:
        # A template has its own cores.
        raise InvalidRequest(
            f"{_where(container)}{chip.resource_core_name} is {cores}: cores can be asked for only "
            "in pods with the annotation huawei.com/vnpu-mode: hami-core"
        )
    if chip.resource_memory_name:
        _write_memory(container, chip, count, soft=soft)
    if chip.runtime_class_name and not pod["spec"].get("runtimeClassName"):
        pod["spec"]["runtimeClassName"] = chip.runtime_class_name
    return Admitted(wants=True)


def hide_chips(container: Json, chip: VnpuChip, config: VnpusConfig) -> None:
    """Shows a container that asks for no chip none, where the configuration wants that."""
    if chip.overwrite_env and not _asks_for_any(container, config):
        set_env(container, VISIBLE_ENV, "")


def _asks_for_any(container: Json, config: VnpusConfig) -> bool:
    """True when the container asks for any chip: it must see that one (HAMi hides it)."""
    return any(amounts.asks(container, chip.resource_name) for chip in config.configs)


def _in_pairs(container: Json, chip: VnpuChip, count: int) -> int:
    """The number of chips where two make a module: one is rounded up to two."""
    if count == 1:
        resources = container["resources"]
        for part in ("limits", "requests"):
            if chip.resource_name in (resources.get(part) or {}):
                resources[part][chip.resource_name] = "2"
        return 2
    if count % 2:
        # HAMi's sentence, to the letter.
        raise InvalidRequest(f"{chip.common_word} device request must be 1 or 2*n, got {count}")
    return count


def _write_memory(container: Json, chip: VnpuChip, count: int, *, soft: bool) -> None:
    """Writes what the container will hold of every chip to its limits and requests."""
    name = chip.resource_memory_name
    memory_mib = _granted_memory(container, chip, soft=soft)
    # Half a module was asked for where two are written now.
    single = count <= 1 or (chip.super_pod and count == 2)
    if not (single or soft or memory_mib == chip.memory_allocatable):
        raise InvalidRequest(
            f"{_where(container)}{name} is for a slice of one chip: vNPU not supported for "
            f"multiple devices; leave it out or ask for 1 {chip.resource_name}"
        )
    # Rounded down: a unit more would be the next template.
    units = str(memory_mib // max(chip.memory_factor, 1))
    resources = container["resources"]
    for part in ("limits", "requests"):
        resources[part] = (resources.get(part) or {}) | {name: units}


def _granted_memory(container: Json, chip: VnpuChip, *, soft: bool) -> int:
    """MiB that the container will hold of every chip."""
    name = chip.resource_memory_name
    written = amounts.find(container, name, limits_only=True)
    if written is None:
        return chip.memory_allocatable
    memory_mib = amounts.memory(container, name, factor=chip.memory_factor, limits_only=True)
    if soft:
        return memory_mib
    if memory_mib > chip.memory_capacity:
        raise InvalidRequest(
            f"{_where(container)}{name} {written} is invalid: {_choices(chip)} is wanted"
        )
    template = template_for(chip, memory_mib)
    return template.memory if template else chip.memory_allocatable


def _choices(chip: VnpuChip) -> str:
    factor = max(chip.memory_factor, 1)
    sizes = [*(t.memory for t in chip.templates), chip.memory_allocatable]
    *others, last = [str(size // factor) for size in sizes]
    return f"{', '.join(others)} or {last}" if others else last


def _where(container: Json) -> str:
    return f"container {container.get('name', '')!r}: "
