"""The `vnpus:` block of the device configuration.

Ascend chips and their templates (protocol 1.16).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hamicommon.device_config.blocks import check_vendor_name
from hamicommon.errors import InvalidRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class VnpuTemplate:
    """A size in which a chip can be cut."""

    name: str
    memory: int
    """MiB."""
    ai_core: int = 0
    ai_cpu: int = 0

    def __post_init__(self) -> None:
        if not self.name or self.memory < 1:
            raise InvalidRequest(
                f"name is {self.name!r} and memory {self.memory}: expected a name and at "
                "least 1 MiB"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class VnpuChip:
    """An entry of `vnpus.configs`; each chip is a vendor of its own."""

    chip_name: str
    common_word: str
    """The vendor's name; annotations are named after it."""
    resource_name: str
    """The count."""
    resource_memory_name: str = ""
    resource_core_name: str = ""
    """Used only in the mode `hami-core`."""
    memory_allocatable: int
    """MiB that a whole card gives to a container."""
    memory_capacity: int
    """MiB that a whole card has."""
    memory_factor: int = 1
    """MiB per unit of the memory resource; less than 1 counts as 1."""
    ai_core: int = 0
    ai_cpu: int = 0
    runtime_class_name: str = ""
    overwrite_env: bool = False
    """Give containers without a card an empty `ASCEND_VISIBLE_DEVICES`."""
    super_pod: bool = False
    """Cards are handed out as pairs."""
    templates: tuple[VnpuTemplate, ...] = ()
    """By memory, the smallest first."""

    def __post_init__(self) -> None:
        check_vendor_name(self.common_word)
        if not self.chip_name or not self.resource_name:
            raise InvalidRequest("chipName and resourceName must not be empty")
        if not 1 <= self.memory_allocatable <= self.memory_capacity:
            raise InvalidRequest(
                f"memoryAllocatable is {self.memory_allocatable}: expected 1 to memoryCapacity, "
                f"which is {self.memory_capacity}"
            )
        self._check_templates()
        ordered = tuple(sorted(self.templates, key=lambda template: template.memory))
        object.__setattr__(self, "templates", ordered)

    def _check_templates(self) -> None:
        names = Counter(template.name for template in self.templates)
        twice = [name for name, times in names.items() if times > 1]
        if twice:
            raise InvalidRequest(f"templates: {twice[0]!r} is there more than once")
        for template in self.templates:
            if template.memory > self.memory_capacity:
                raise InvalidRequest(
                    f"templates: {template.name!r} has {template.memory} MiB, more than "
                    f"memoryCapacity, which is {self.memory_capacity}"
                )
            if self.ai_core and template.ai_core > self.ai_core:
                raise InvalidRequest(
                    f"templates: {template.name!r} has {template.ai_core} cores, more than "
                    f"aiCore, which is {self.ai_core}"
                )


_CHIPS = (
    # chip, vendor, allocatable and capacity in MiB, cores, CPUs, (name, MiB, cores, CPUs)...
    ("910A", "Ascend910A", 32768, 32768, 30, 0,
     (("vir02", 2184, 2, 0), ("vir04", 4369, 4, 0),
      ("vir08", 8738, 8, 0), ("vir16", 17476, 16, 0))),
    ("910B2", "Ascend910B2", 65536, 65536, 24, 6,
     (("vir03_1c_8g", 8192, 3, 1), ("vir06_1c_16g", 16384, 6, 1), ("vir12_3c_32g", 32768, 12, 3))),
    ("910B3", "Ascend910B3", 65536, 65536, 20, 7,
     (("vir05_1c_16g", 16384, 5, 1), ("vir10_3c_32g", 32768, 10, 3))),
    ("910B4-1", "Ascend910B4-1", 65536, 65536, 20, 7,
     (("vir05_1c_16g", 16384, 5, 1), ("vir10_3c_32g", 32768, 10, 3))),
    ("910B4", "Ascend910B4", 32768, 32768, 20, 7,
     (("vir05_1c_8g", 8192, 5, 1), ("vir10_3c_16g", 16384, 10, 3))),
    ("310P3", "Ascend310P", 21527, 24576, 8, 7,
     (("vir01", 3072, 1, 1), ("vir02", 6144, 2, 2), ("vir04", 12288, 4, 4))),
    ("Ascend910", "Ascend910C", 65536, 65536, 20, 7,
     (("vir05_1c_16g", 16384, 5, 1), ("vir10_3c_32g", 32768, 10, 3))),
)  # fmt: skip

VNPU_CHIPS = tuple(
    VnpuChip(
        chip_name=chip,
        common_word=vendor,
        resource_name=f"huawei.com/{vendor}",
        resource_memory_name=f"huawei.com/{vendor}-memory",
        resource_core_name=f"huawei.com/{vendor}-core",
        memory_allocatable=allocatable,
        memory_capacity=capacity,
        ai_core=cores,
        ai_cpu=cpus,
        super_pod=vendor == "Ascend910C",
        templates=tuple(
            VnpuTemplate(name=name, memory=memory, ai_core=core, ai_cpu=cpu)
            for name, memory, core, cpu in templates
        ),
    )
    for chip, vendor, allocatable, capacity, cores, cpus, templates in _CHIPS
)
"""The chart's chips."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VnpusConfig:
    """The block."""

    hami_vnpu_core: bool = False
    """Whether nodes can cut chips in software, where a node has no annotation about it."""
    configs: tuple[VnpuChip, ...] = VNPU_CHIPS
