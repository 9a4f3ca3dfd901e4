"""Convert flags and variables of HAMi's device plugin, and old setting names, to settings.

A DaemonSet written for HAMi's plugin runs our agent with its command line; `docs/node-agent.md` has
the table (protocol 5.1). Both sets are deprecated: each name that is used has one line in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hamicommon.errors import InvalidRequest

OUR_PREFIX = "HAMI_NODE_AGENT_"
LAST_VERSION = "0.4.0"
"""Last version that reads HAMi's flags, variables and files (docs/compatibility.md)."""

# Texts that Go's strconv.ParseBool takes, which reads HAMi's flags.
_BOOLS = dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "FALSE", "false", "False"), False
)


@dataclass(frozen=True, slots=True)
class Flag:
    """Option that sets one of our settings."""

    names: str
    """Names on the command line, without dashes, separated by spaces."""
    variables: str = ""
    setting: str = ""
    read: Callable[[str], object] = str
    """Function that returns the setting's value; tuples are combined, None sets nothing."""
    weak: bool = False
    """Whether the device configuration overrides it, as in HAMi."""
    unused: str = ""
    """Reason why the option has no effect here."""


def _bool(value: str) -> bool:
    if value not in _BOOLS:
        raise InvalidRequest(f"{value!r} is neither true nor false")
    return _BOOLS[value]


def _feature(entry: str) -> Callable[[str], object]:
    return lambda value: (entry,) if _bool(value) else ()


def _entries(prefix: str = "") -> Callable[[str], object]:
    return lambda value: tuple(f"{prefix}{w.strip()}" for w in value.split(",") if w.strip())


def _kubelet_dir(value: str) -> Path:
    path = Path(value)
    if path.parts[-2:] != ("device-plugins", "kubelet.sock"):
        raise InvalidRequest(
            f"{value!r}: expected a path that ends in /device-plugins/kubelet.sock"
        )
    return path.parent.parent


def _dev_root(value: str) -> Path | None:
    return Path(value) / "dev" if value else None


def _discovery(value: str) -> None:
    if value not in ("auto", "nvml"):
        raise InvalidRequest(f"{value!r}: cards are found through NVML only: auto or nvml")


_CTK = "the agent makes no CDI file of the driver: `nvidia-ctk cdi generate` of the node does"
_PREFIX = "CDI annotations begin with cdi.k8s.io/, as CDI has it"

FLAGS: tuple[Flag, ...] = (
    Flag("mig-strategy", "MIG_STRATEGY", "mig_strategy"),
    Flag("fail-on-init-error", "FAIL_ON_INIT_ERROR", "fail_on_init_error", _bool),
    Flag("nvidia-driver-root", "NVIDIA_DRIVER_ROOT", unused=_CTK),
    Flag("dev-root nvidia-dev-root", "NVIDIA_DEV_ROOT", "dev_root", _dev_root),
    Flag("pass-device-specs", "PASS_DEVICE_SPECS", "pass_device_specs", _bool),
    Flag("device-list-strategy", "DEVICE_LIST_STRATEGY", "device_list_strategy"),
    Flag("device-id-strategy", "DEVICE_ID_STRATEGY", "device_id_strategy"),
    Flag("gdrcopy-enabled", "GDRCOPY_ENABLED", "features", _feature("gdrcopy")),
    Flag("gds-enabled", "GDS_ENABLED", "features", _feature("gds")),
    Flag("mofed-enabled", "MOFED_ENABLED", "features", _feature("mofed")),
    Flag("kubelet-socket", "KUBELET_SOCKET", "kubelet_dir", _kubelet_dir),
    Flag("config-file", "CONFIG_FILE", "device_config_file", lambda value: value or None),
    Flag("cdi-annotation-prefix", "CDI_ANNOTATION_PREFIX", unused=_PREFIX),
    Flag(
        "nvidia-cdi-hook-path nvidia-ctk-path", "NVIDIA_CDI_HOOK_PATH NVIDIA_CTK_PATH", unused=_CTK
    ),
    Flag(
        "driver-root-ctr-path container-driver-root",
        "DRIVER_ROOT_CTR_PATH CONTAINER_DRIVER_ROOT",
        unused=_CTK,
    ),
    Flag("device-discovery-strategy", "DEVICE_DISCOVERY_STRATEGY", read=_discovery),
    Flag("imex-channel-ids", "IMEX_CHANNEL_IDS", "imex_channel_ids"),
    Flag("imex-required", "IMEX_REQUIRED", "imex_required", _bool),
    Flag("v", unused="HAMI_TELEMETRY_LOG_LEVEL sets how much is logged"),
    Flag("node-name", "NodeName NODE_NAME", "node_name"),
    Flag("device-split-count", "DEVICE_SPLIT_COUNT", "device_split_count", weak=True),
    Flag("device-memory-scaling", "DEVICE_MEMORY_SCALING", "device_memory_scaling", weak=True),
    Flag("device-cores-scaling", "DEVICE_CORES_SCALING", "device_core_scaling", weak=True),
    Flag("disable-core-limit", "DISABLE_CORE_LIMIT", "disable_core_limit", _bool, weak=True),
    Flag("resource-name", setting="resource_name", weak=True),
    Flag("", "HOOK_PATH", "hook_path"),
    Flag("", "DP_DISABLE_HEALTHCHECKS", "health_checks", _entries("-")),
    Flag("", "DP_ENABLE_HEALTHCHECKS", "health_checks", _entries()),
)
"""Flags in the order of HAMi's documentation; KUBECONFIG is a setting of the same name."""


def _kubelet_dir_of(*inner: str) -> Callable[[str], object]:
    """Return a function that reads the kubelet's folder from a path below it."""

    def read(value: str) -> Path:
        path = Path(value)
        if path.parts[-len(inner) :] != inner:
            raise InvalidRequest(
                f"{value!r}: expected a path that ends in {'/'.join(inner)}, and "
                f"{OUR_PREFIX}KUBELET_DIR is the folder above"
            )
        return Path(*path.parts[: -len(inner)])

    return read


def _scrape_audience(value: str) -> str | None:
    return "hami-metrics" if _bool(value) else None


_INTERVALS = "it is derived from HEARTBEAT_S"
_CONSTANT = "it is a constant"

RETIRED: tuple[Flag, ...] = (
    Flag("", "KUBELET_SOCKET_DIR", "kubelet_dir", _kubelet_dir_of("device-plugins")),
    Flag(
        "", "POD_RESOURCES_SOCKET", "kubelet_dir", _kubelet_dir_of("pod-resources", "kubelet.sock")
    ),
    Flag("", "KUBELET_CHECKPOINT", unused="it lies in device-plugins of KUBELET_DIR"),
    Flag("", "REGISTER_WITH_KUBELET", unused="the plugin always registers"),
    Flag("", "CONTAINER_HOOK_PATH", unused="containers see the library in /usr/local/vgpu"),
    Flag("", "NODE_CONFIG_FILE", unused="HAMi's config.json is read where HAMi mounts it"),
    Flag("", "MPS_CONTROL", unused="nvidia-cuda-mps-control is found by PATH"),
    Flag("", "MPS_SHM_DIR", unused="it is the folder shm of MPS_DIR, if there is one"),
    Flag("", "HIDDEN_UUIDS", "hidden_devices", _entries()),
    Flag("", "HIDDEN_INDEXES", "hidden_devices", _entries()),
    Flag("", "GDRCOPY_ENABLED", "features", _feature("gdrcopy")),
    Flag("", "GDS_ENABLED", "features", _feature("gds")),
    Flag("", "MOFED_ENABLED", "features", _feature("mofed")),
    Flag("", "PREFERRED_ALLOCATION", unused="the kubelet asks whenever the choice matters"),
    Flag("", "CDI_ANNOTATION_PREFIX", unused=_PREFIX),
    Flag("", "CGROUP_ROOT", unused="the host's cgroups are looked for beside PROC_ROOT"),
    Flag("", "SCRAPE_TOKENS", "scrape_audience", _scrape_audience),
    Flag("", "GRANT_WAIT_S", unused=_CONSTANT),
    Flag("", "UNMANAGED_PODS", unused="pods that bypass the scheduler are refused"),
    Flag("", "NVML_TIMEOUT_S", unused=_CONSTANT),
    Flag("", "ENFORCEMENT_OVERHEAD_MIB", unused=_CONSTANT),
    Flag("", "PROBE_INTERVAL_S", unused=_INTERVALS),
    Flag("", "SNAPSHOT_INTERVAL_S", unused=_INTERVALS),
    Flag("", "SWEEP_INTERVAL_S", unused=_INTERVALS),
)
"""Old names of variables behind `HAMI_NODE_AGENT_`, read for one more release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HamiOptions:
    """Settings from HAMi's options, by precedence."""

    settings: Mapping[str, object] = field(default_factory=dict)
    """Settings that override the device configuration."""
    weak: Mapping[str, object] = field(default_factory=dict)
    """Settings that apply only if no file sets them."""
    notes: tuple[str, ...] = ()
    """A sentence for each option that was given."""


def options_of(arguments: Sequence[str], variables: Mapping[str, str]) -> HamiOptions:
    """Read a command line (without the program's name) and the environment.

    A flag counts before its variable, and our own variable of the same setting before both.

    Raises: InvalidRequest that names the flag or the variable, its value and what would be right.
    """
    given: dict[Flag, tuple[str, str]] = {}
    for prefix, flags in (("", FLAGS), (OUR_PREFIX, RETIRED)):
        for flag in flags:
            names = (f"{prefix}{name}" for name in flag.variables.split())
            if (name := next((name for name in names if name in variables), None)) is not None:
                given[flag] = (name, variables[name])
    for flag, name, value in _command_line(arguments):
        given[flag] = (name, value)
    settings: dict[str, object] = {}
    weak: dict[str, object] = {}
    notes = []
    for flag, (name, value) in given.items():
        if f"{OUR_PREFIX}{flag.setting.upper()}" in variables:
            continue
        notes.append(_note(flag, name))
        try:
            found = None if flag.unused else flag.read(value)
        except InvalidRequest as exc:
            raise InvalidRequest(f"{name}: {exc}") from exc
        target = weak if flag.weak else settings
        if isinstance(found, tuple):
            before = target.get(flag.setting, ())
            assert isinstance(before, tuple)
            target[flag.setting] = (*before, *found)
        elif found is not None:
            target[flag.setting] = found
    return HamiOptions(settings=settings, weak=weak, notes=tuple(notes))


def _note(flag: Flag, name: str) -> str:
    if name.startswith(OUR_PREFIX):
        instead = flag.unused or f"set {OUR_PREFIX}{flag.setting.upper()}"
        return f"{name} will be removed in the next release: {instead}"
    if flag.unused:
        return f"{name} of HAMi's plugin has no effect: {flag.unused}"
    instead = f"; set {OUR_PREFIX}{flag.setting.upper()}" if flag.setting else ""
    return f"{name} of HAMi's plugin is deprecated and read until {LAST_VERSION}{instead}"


def _command_line(arguments: Sequence[str]) -> list[tuple[Flag, str, str]]:
    """Yield (flag, its name as written, value) for each argument, in order."""
    by_name = {name: flag for flag in FLAGS for name in flag.names.split()}
    found = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, equals, value = argument.lstrip("-").partition("=")
        if not argument.startswith("-") or name not in by_name:
            known = ", ".join(f"--{known}" for known in by_name)
            raise InvalidRequest(f"{argument}: no such flag; known flags: {known}")
        flag = by_name[name]
        if not equals:
            if _is_switch(flag):
                value = "true"
            elif rest:
                value = rest.pop(0)
            else:
                raise InvalidRequest(f"--{name}: expected a value after it")
        found.append((flag, f"--{name}", value))
    return found


def _is_switch(flag: Flag) -> bool:
    """Return whether the flag may have no value, which means true."""
    return flag.read is _bool or flag.setting == "features"
