"""Read HAMi's `device-config.yaml`: names of vendors' resources, and defaults.

Input: a path (or none). Output: a frozen `DeviceConfig`, one block per vendor. The keys and their
defaults are those of HAMi 2.10's chart (protocol 1), so a file written for HAMi needs no change. A
block's dataclass is its whole schema: its fields give the keys (camel case, as HAMi writes them),
their types and their defaults, so the field `resource_count_name` is the key `resourceCountName`.
The dataclass itself checks what a type can't express, when it is created; the block's path is put
before its error. A vendor whose count resource is empty is not served.

`vendors.registry` makes the vendors from it; the node-agent reads the node defaults
(`device_split_count` and others) from it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

import yaml

from hamicommon.errors import InvalidRequest

INT32_MAX = 2**31 - 1
"""Maximum of HAMi's amounts, which are int32."""

_INITIALS = frozenset({"gpu", "cpu", "gcu", "vgcu", "drs"})
"""Parts of HAMi's keys that are written in capitals unless they come first."""
_RESOURCE = re.compile(r"(?=.{3,317}$)[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9][A-Za-z0-9._-]*")
"""Pattern of an extended resource: a domain, a slash and a name."""
_WANTED: Mapping[object, str] = {
    bool: "true or false",
    int: f"a whole number from 0 to {INT32_MAX}",
    float: "a number above 0",
    str: "a text",
}

T = TypeVar("T")


def read_block(value: object, block: type[T], path: str, notes: list[str]) -> T:
    """Read `value` as a `block`; keys of older versions are left out and noted in `notes`.

    A block may name such keys in a class variable `OLDER_KEYS`.

    Raises: InvalidRequest with the path of the wrong key, its value and what would be right.
    """
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{path}: expected a mapping of keys, not {value!r}")
    names = keys_of(block)
    types = get_type_hints(block)
    values: dict[str, Any] = {}
    for key, entry in value.items():
        if key in getattr(block, "OLDER_KEYS", ()):
            notes.append(f"{path}.{key}: a key of older versions; it is ignored")
        elif key in names:
            values[names[key]] = read_value(entry, types[names[key]], f"{path}.{key}", notes)
        else:
            raise InvalidRequest(f"{path}.{key}: unknown key{did_you_mean(key, names)}")
    for key, name in names.items():
        if name not in values and _is_required(block, name):
            raise InvalidRequest(f"{path}: the key {key} is missing")
    try:
        return block(**values)
    except InvalidRequest as exc:
        raise InvalidRequest(f"{path}: {exc}") from exc


def read_value(value: object, kind: Any, path: str, notes: list[str]) -> object:
    """Convert `value` to a field's type `kind`; None is never valid.

    Raises: InvalidRequest with the path of the wrong key, its value and what would be right.
    """
    if get_origin(kind) is UnionType:
        kind = next(x for x in get_args(kind) if x is not NoneType)
    if get_origin(kind) is tuple:
        return _list(value, get_args(kind)[0], path, notes)
    if is_dataclass(kind) and isinstance(kind, type):
        return read_block(value, kind, path, notes)
    if kind is bool and isinstance(value, bool):
        return value
    if not isinstance(value, bool):
        if kind is int and isinstance(value, int) and 0 <= value <= INT32_MAX:
            return value
        if kind is float and isinstance(value, int | float) and value > 0:
            return float(value)
        if kind is str and isinstance(value, str | int):
            return _text(str(value), path)
    raise InvalidRequest(f"{path} is {value!r}: expected {_WANTED[kind]}")


def did_you_mean(key: object, known: Mapping[str, object]) -> str:
    """Return a hint to the most similar known key; empty if none is similar."""
    close = get_close_matches(str(key), known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def keys_of(block: type[Any]) -> dict[str, str]:
    """Return the field for each key of a block."""
    return {_key_of(item.name): item.name for item in fields(block)}


def _key_of(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(x.upper() if x in _INITIALS else x.capitalize() for x in rest)


def _is_required(block: type[Any], name: str) -> bool:
    item = block.__dataclass_fields__[name]
    return item.default is MISSING and item.default_factory is MISSING


def _list(value: object, kind: Any, path: str, notes: list[str]) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise InvalidRequest(f"{path} is {value!r}: expected a list")
    return tuple(read_value(x, kind, f"{path}[{index}]", notes) for index, x in enumerate(value))


def _text(value: str, path: str) -> str:
    """Check a text.

    Under a key such as `resourceCountName` it must be a resource's name or empty.
    """
    is_resource = path.rpartition(".")[2].startswith("resource")
    if is_resource and value and not _RESOURCE.fullmatch(value):
        raise InvalidRequest(
            f"{path} is {value!r}: expected the name of an extended resource, "
            "such as example.com/gpu"
        )
    return value


_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,40}[A-Za-z0-9])?")


def check_vendor_name(name: str) -> None:
    """Raises InvalidRequest when `name` cannot be part of an annotation's key."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"commonWord is {name!r}: expected letters, digits, '.', '_' and '-', because "
            "annotations are named after it"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CambriconConfig:
    """Block `cambricon:`, the vendor `MLU`."""

    resource_count_name: str = "cambricon.com/vmlu"
    resource_memory_name: str = "cambricon.com/mlu.smlu.vmemory"
    resource_core_name: str = "cambricon.com/mlu.smlu.vcore"


@dataclass(frozen=True, slots=True, kw_only=True)
class HygonConfig:
    """Block `hygon:`, the vendor `DCU`."""

    resource_count_name: str = "hygon.com/dcunum"
    resource_memory_name: str = "hygon.com/dcumem"
    resource_core_name: str = "hygon.com/dcucores"
    memory_factor: int = 1
    """MiB per unit of the memory resource; less than 1 counts as 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaxConfig:
    """Block `metax:`, the vendors `Metax-GPU` (whole cards) and `Metax-SGPU` (slices)."""

    resource_count_name: str = "metax-tech.com/gpu"
    resource_v_count_name: str = "metax-tech.com/sgpu"
    resource_v_memory_name: str = "metax-tech.com/vmemory"
    resource_v_core_name: str = "metax-tech.com/vcore"
    sgpu_topology_aware: bool = False
    """Whether to count link zones in the node score; a pod's annotation overrides it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnflameConfig:
    """Block `enflame:`, the vendors `GCU` (whole cards) and `Enflame` (slices).

    The names of slices are never empty: HAMi, too, puts its defaults in their place.
    """

    resource_name_gcu: str = "enflame.com/gcu"
    resource_name_drs_gcu: str = ""
    """Resource whose amount is the size of the slice, not a count; empty: `resource_name_vgcu`."""
    resource_name_gcu_memory: str = ""
    resource_name_gcu_core: str = ""
    resource_name_vgcu: str = ""
    """Older name of `resource_name_drs_gcu`, which it replaces if that one is empty."""
    resource_name_vgcu_percentage: str = ""
    """Unused; older versions read it, so their files have it."""

    def __post_init__(self) -> None:
        drs = self.resource_name_drs_gcu
        names = {
            "resource_name_drs_gcu": drs or self.resource_name_vgcu or "enflame.com/drs-gcu",
            "resource_name_gcu_memory": self.resource_name_gcu_memory or "enflame.com/gcu-memory",
            "resource_name_gcu_core": self.resource_name_gcu_core or "enflame.com/gcu-core",
            "resource_name_vgcu": self.resource_name_vgcu if drs else "",
        }
        for attribute, name in names.items():
            object.__setattr__(self, attribute, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class MthreadsConfig:
    """Block `mthreads:`, the vendor `Mthreads`."""

    resource_count_name: str = "mthreads.com/vgpu"
    resource_memory_name: str = "mthreads.com/sgpu-memory"
    resource_core_name: str = "mthreads.com/sgpu-core"


@dataclass(frozen=True, slots=True, kw_only=True)
class KunlunConfig:
    """Block `kunlun:`, the vendors `kunlun` (whole cards) and `XPU` (slices)."""

    resource_count_name: str = "kunlunxin.com/xpu"
    resource_v_count_name: str = "kunlunxin.com/vxpu"
    resource_v_memory_name: str = "kunlunxin.com/vxpu-memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsNeuronConfig:
    """Block `awsneuron:`, the vendor `AWSNeuron`."""

    resource_count_name: str = "aws.amazon.com/neuron"
    resource_core_name: str = "aws.amazon.com/neuroncore"


@dataclass(frozen=True, slots=True, kw_only=True)
class AmdConfig:
    """Block `amd:`, the vendor `AMD`."""

    resource_count_name: str = "amd.com/gpu"
    resource_core_name: str = "amd.com/gpucores"
    resource_memory_name: str = "amd.com/gpumem"


@dataclass(frozen=True, slots=True, kw_only=True)
class VastaiConfig:
    """Block `vastai:`, the vendor `Vastai`."""

    resource_count_name: str = "vastaitech.com/va"


@dataclass(frozen=True, slots=True, kw_only=True)
class BirenConfig:
    """Block `biren:`, the vendor `Biren`."""

    resource_count_name: str = "birentech.com/gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class IluvatarChip:
    """Entry of the list `iluvatars:`; each chip is a separate vendor."""

    chip_name: str
    common_word: str
    """Name of the vendor, from which annotations are named."""
    resource_count_name: str
    resource_memory_name: str = ""
    resource_core_name: str = ""

    def __post_init__(self) -> None:
        check_vendor_name(self.common_word)
        if not self.chip_name or not self.resource_count_name:
            raise InvalidRequest("chipName and resourceCountName must not be empty")


ILUVATAR_CHIPS = tuple(
    IluvatarChip(
        chip_name=chip,
        common_word=chip,
        resource_count_name=f"iluvatar.ai/{chip}-vgpu",
        resource_memory_name=f"iluvatar.ai/{chip}.vMem",
        resource_core_name=f"iluvatar.ai/{chip}.vCore",
    )
    for chip in ("MR-V100", "MR-V50", "BI-V150", "BI-V100")
)
"""Iluvatar chips that HAMi's chart lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VnpuTemplate:
    """One size into which a chip can be cut."""

    name: str
    memory: int
    """Memory of the slice in MiB."""
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
    """Entry of `vnpus.configs`; each chip is a separate vendor."""

    chip_name: str
    common_word: str
    """Name of the vendor, from which annotations are named."""
    resource_name: str
    """Resource by which pods ask for a number of chips."""
    resource_memory_name: str = ""
    resource_core_name: str = ""
    """Resource of cores, used only in the mode `hami-core`."""
    memory_allocatable: int
    """Memory in MiB that a container gets of a whole card."""
    memory_capacity: int
    """Memory of a card in MiB."""
    memory_factor: int = 1
    """MiB per unit of the memory resource; less than 1 counts as 1."""
    ai_core: int = 0
    ai_cpu: int = 0
    runtime_class_name: str = ""
    overwrite_env: bool = False
    """Whether containers without a card get an empty `ASCEND_VISIBLE_DEVICES`."""
    super_pod: bool = False
    """Whether cards are granted in pairs."""
    templates: tuple[VnpuTemplate, ...] = ()
    """Sizes into which the chip can be cut, the smallest memory first."""

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
            raise InvalidRequest(f"templates: {twice[0]!r} appears more than once")
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
"""Ascend chips that HAMi's chart lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VnpusConfig:
    """Block `vnpus:`."""

    hami_vnpu_core: bool = False
    """Whether nodes cut chips in software, unless the node's annotation differs."""
    configs: tuple[VnpuChip, ...] = VNPU_CHIPS


@dataclass(frozen=True, slots=True, kw_only=True)
class MigAllowance:
    """MIG profiles that may be used on cards whose product name contains one of `models`."""

    models: tuple[str, ...]
    profiles: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.models or not self.profiles:
            raise InvalidRequest("expected at least one model and one profile")
        for profile in self.profiles:
            slices, _, rest = profile.partition(".")
            if not rest or len(slices) < 2 or not slices.endswith("g"):
                raise InvalidRequest(f"profile {profile!r} is malformed: write it like 1g.10gb")


_MIG_TABLE = (
    ("A30", "1g.6gb 2g.12gb 4g.24gb"),
    ("A100-SXM4-40GB|A100-40GB-PCIe|A100-PCIE-40GB", "1g.5gb 2g.10gb 3g.20gb 7g.40gb"),
    ("A100-SXM4-80GB|A100-80GB-PCIe|A100-PCIE-80GB", "1g.10gb 2g.20gb 3g.40gb 7g.79gb"),
    ("H100-PCIE-80GB|H100-SXM5-80GB", "1g.10gb 2g.20gb 3g.40gb 7g.80gb"),
    ("H100-PCIE-94GB|H100-SXM5-94GB", "1g.12gb 2g.24gb 3g.47gb 7g.94gb"),
    ("H20|H100 on GH200", "1g.12gb 2g.24gb 3g.48gb 7g.96gb"),
    ("H200 NVL|H200-SXM5", "1g.18gb 2g.35gb 3g.71gb 7g.141gb"),
    ("B200", "1g.23gb 2g.45gb 3g.90gb 7g.180gb"),
    ("RTX PRO 6000 Blackwell Server Edition", "1g.24gb 2g.48gb 4g.96gb"),
)

DEFAULT_MIG_ALLOWLIST = tuple(
    MigAllowance(models=tuple(models.split("|")), profiles=tuple(profiles.split()))
    for models, profiles in _MIG_TABLE
)
"""MIG profiles that HAMi's chart allows; a model is a part of the product name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaConfig:
    """Block `nvidia:`; the field `resource_count_name` is the key `resourceCountName`."""

    OLDER_KEYS: ClassVar[frozenset[str]] = frozenset({"knownMigGeometries"})

    resource_count_name: str = "nvidia.com/gpu"
    resource_memory_name: str = "nvidia.com/gpumem"
    resource_memory_percentage_name: str = "nvidia.com/gpumem-percentage"
    resource_core_name: str = "nvidia.com/gpucores"
    resource_priority_name: str = "nvidia.com/priority"
    overwrite_env: bool = False
    """Whether containers without a card get `NVIDIA_VISIBLE_DEVICES=none`."""
    default_memory: int = 0
    """Memory in MiB for a container that asks for no memory; 0: all of the card's."""
    default_cores: int = 0
    """Percent of cores for a container that asks for no cores."""
    default_gpu_num: int = 1
    """Number of cards for a container that asks only for memory or cores; 0: it gets none."""
    memory_factor: int = 1
    """MiB per unit of the memory resource; less than 1 counts as 1."""
    disable_core_limit: bool = False
    gpu_core_policy: str = "default"
    runtime_class_name: str = ""
    mig_profile_allowlist: tuple[MigAllowance, ...] = DEFAULT_MIG_ALLOWLIST
    device_split_count: int = 10
    """Slots per card; this field and the following ones may be overridden per node."""
    device_memory_scaling: float = 1.0
    device_core_scaling: float = 1.0
    pre_configured_device_memory: int = 0
    """Memory in MiB of a card whose driver can't report it."""
    lib_cuda_log_level: str = "1"
    enable_numa_topology: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """Contents of the file; a vendor whose block is None (or an empty list) is not served."""

    nvidia: NvidiaConfig | None = field(default_factory=NvidiaConfig)
    cambricon: CambriconConfig | None = field(default_factory=CambriconConfig)
    hygon: HygonConfig | None = field(default_factory=HygonConfig)
    metax: MetaxConfig | None = field(default_factory=MetaxConfig)
    enflame: EnflameConfig | None = field(default_factory=EnflameConfig)
    mthreads: MthreadsConfig | None = field(default_factory=MthreadsConfig)
    iluvatars: tuple[IluvatarChip, ...] = ILUVATAR_CHIPS
    kunlun: KunlunConfig | None = field(default_factory=KunlunConfig)
    awsneuron: AwsNeuronConfig | None = field(default_factory=AwsNeuronConfig)
    amd: AmdConfig | None = field(default_factory=AmdConfig)
    vastai: VastaiConfig | None = field(default_factory=VastaiConfig)
    biren: BirenConfig | None = field(default_factory=BirenConfig)
    vnpus: VnpusConfig | None = field(default_factory=VnpusConfig)
    notes: tuple[str, ...] = ()
    """Sentences about entries that were not used or left out, for the log at start-up."""

    def __post_init__(self) -> None:
        _refuse_twice(self)


_BLOCKS = tuple(item.name for item in fields(DeviceConfig) if item.name != "notes")
_LISTS = frozenset({"iluvatars"})

_OF_NVIDIAS_PLUGIN = frozenset({"version", "flags", "resources", "sharing", "imex"})
"""Blocks that HAMi's device plugin passes on to NVIDIA's (protocol 5.1); not read here."""


def load(path: Path | None) -> DeviceConfig:
    """Read the file; None gives the defaults.

    Raises: InvalidRequest that names the file, and the key when one is wrong.
    """
    if path is None:
        return DeviceConfig()
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise InvalidRequest(f"{path}: not a readable YAML file: {exc.strerror}") from exc
    except (UnicodeDecodeError, yaml.YAMLError) as exc:
        reason = " ".join(str(exc).split())
        raise InvalidRequest(f"{path}: not a readable YAML file: {reason}") from exc
    try:
        return parse(document)
    except InvalidRequest as exc:
        raise InvalidRequest(f"{path}: {exc}") from exc


def parse(document: object) -> DeviceConfig:
    """Parse the YAML text of the file.

    A block that is there has the defaults for the keys that it leaves out; a vendor without a block
    is not served, as in HAMi.

    Raises: InvalidRequest that names the wrong key.
    """
    if document is not None and not isinstance(document, Mapping):
        raise InvalidRequest(
            f"the device configuration is {document!r:.60}: expected blocks such as nvidia:"
        )
    if document is None or all(
        block is None or key in _OF_NVIDIAS_PLUGIN for key, block in document.items()
    ):
        raise InvalidRequest("the device configuration is empty: it needs a block such as nvidia:")
    known = dict.fromkeys(_BLOCKS)
    for key in document:
        if key not in known and key not in _OF_NVIDIAS_PLUGIN:
            raise InvalidRequest(f"{key}: unknown block{did_you_mean(key, known)}")
    notes: list[str] = []
    types = get_type_hints(DeviceConfig)
    blocks: dict[str, Any] = {name: () if name in _LISTS else None for name in _BLOCKS}
    for name, block in document.items():
        if block is not None and name in known:
            written = _of_today(name, block, notes)
            blocks[name] = read_value(written, types[name], name, notes)
    absent = [name for name in _BLOCKS if document.get(name) is None]
    if absent:
        notes.append(f"not served, because the file has no such block: {', '.join(absent)}")
    return DeviceConfig(**blocks, notes=tuple(notes))


def _of_today(name: str, block: object, notes: list[str]) -> object:
    """Convert an older form of the block to that of HAMi 2.10."""
    if name == "vnpus" and isinstance(block, list):
        notes.append("vnpus: a list is the form of older versions; it is read as vnpus.configs")
        return {"configs": block}
    return block


def _texts(value: object, path: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield every text in the blocks: the path of its key, the field's name, and the text."""
    if isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _texts(item, f"{path}[{index}]")
    elif is_dataclass(value) and not isinstance(value, type):
        for key, name in keys_of(type(value)).items():
            inner = getattr(value, name)
            where = f"{path}.{key}" if path else key
            if isinstance(inner, str):
                yield where, name, inner
            else:
                yield from _texts(inner, where)


def _refuse_twice(config: DeviceConfig) -> None:
    """Raise InvalidRequest if two keys name one resource, or two chips have one name."""
    seen: dict[tuple[str, str], str] = {}
    for path, name, text in _texts(config):
        kind = "resource" if name.startswith("resource_") else name
        if kind in ("resource", "common_word") and text:
            first = seen.setdefault((kind, text), path)
            if first != path:
                raise InvalidRequest(
                    f"{path} is {text!r}, which {first} is already: each must be different"
                )
