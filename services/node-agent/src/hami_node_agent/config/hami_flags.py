"""The flags and variables of HAMi's device plugin, as settings of ours (protocol 5.1).

In: a command line and the environment. Out: `HamiOptions`: settings as pydantic reads them, in
three ranks, and one sentence for each option that means nothing here. A DaemonSet written for
HAMi's plugin runs our agent as it stands; `docs/node-agent.md` has the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hamicommon.errors import InvalidRequest

OUR_PREFIX = "HAMI_NODE_AGENT_"
# Texts that Go's strconv.ParseBool takes, which reads HAMi's flags.
_BOOLS = dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "FALSE", "false", "False"), False
)

Meaning = Mapping[str, object]
"""The settings that one value means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag of HAMi's plugin."""

    names: tuple[str, ...]
    """Without the dashes; none: there is only a variable."""
    variables: tuple[str, ...] = ()
    meaning: Callable[[str], Meaning] | None = None
    """The settings that a value stands for."""
    switch: bool = False
    """May stand alone on the command line, and is true then."""
    weak: bool = False
    """HAMi reads it and goes by the device configuration: it counts where that is silent."""
    unused: str = ""
    """Why it means nothing here."""


def _as(setting: str) -> Callable[[str], Meaning]:
    return lambda value: {setting: value}


def _flag(setting: str) -> Callable[[str], Meaning]:
    def meaning(value: str) -> Meaning:
        if value not in _BOOLS:
            raise InvalidRequest(f"{value!r} is neither true nor false")
        return {setting: _BOOLS[value]}

    return meaning


def _kubelet_socket(value: str) -> Meaning:
    if not value:
        return {"register_with_kubelet": False}
    path = Path(value)
    if path.name != "kubelet.sock":
        raise InvalidRequest(f"{value!r}: a path that ends in /kubelet.sock is wanted")
    return {"kubelet_socket_dir": path.parent}


def _hook_path(value: str) -> Meaning:
    return {"hook_path": value, "container_hook_path": value}


def _dev_root(value: str) -> Meaning:
    return {"dev_root": Path(value) / "dev"} if value else {}


def _config_file(value: str) -> Meaning:
    return {"device_config_file": value or None}


def _discovery(value: str) -> Meaning:
    if value not in ("auto", "nvml"):
        raise InvalidRequest(f"{value!r}: cards are found through NVML alone: auto or nvml")
    return {}


_CTK = "the agent makes no CDI file of the driver: `nvidia-ctk cdi generate` of the node does"

FLAGS: tuple[Flag, ...] = (
    Flag(names=("mig-strategy",), variables=("MIG_STRATEGY",), meaning=_as("mig_strategy")),
    Flag(
        names=("fail-on-init-error",),
        variables=("FAIL_ON_INIT_ERROR",),
        meaning=_flag("fail_on_init_error"),
        switch=True,
    ),
    Flag(names=("nvidia-driver-root",), variables=("NVIDIA_DRIVER_ROOT",), unused=_CTK),
    Flag(names=("dev-root", "nvidia-dev-root"), variables=("NVIDIA_DEV_ROOT",), meaning=_dev_root),
    Flag(
        names=("pass-device-specs",),
        variables=("PASS_DEVICE_SPECS",),
        meaning=_flag("pass_device_specs"),
        switch=True,
    ),
    Flag(
        names=("device-list-strategy",),
        variables=("DEVICE_LIST_STRATEGY",),
        meaning=_as("device_list_strategy"),
    ),
    Flag(
        names=("device-id-strategy",),
        variables=("DEVICE_ID_STRATEGY",),
        meaning=_as("device_id_strategy"),
    ),
    Flag(
        names=("gdrcopy-enabled",),
        variables=("GDRCOPY_ENABLED",),
        meaning=_flag("gdrcopy_enabled"),
        switch=True,
    ),
    Flag(
        names=("gds-enabled",),
        variables=("GDS_ENABLED",),
        meaning=_flag("gds_enabled"),
        switch=True,
    ),
    Flag(
        names=("mofed-enabled",),
        variables=("MOFED_ENABLED",),
        meaning=_flag("mofed_enabled"),
        switch=True,
    ),
    Flag(names=("kubelet-socket",), variables=("KUBELET_SOCKET",), meaning=_kubelet_socket),
    Flag(names=("config-file",), variables=("CONFIG_FILE",), meaning=_config_file),
    Flag(
        names=("cdi-annotation-prefix",),
        variables=("CDI_ANNOTATION_PREFIX",),
        meaning=_as("cdi_annotation_prefix"),
    ),
    Flag(
        names=("nvidia-cdi-hook-path", "nvidia-ctk-path"),
        variables=("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"),
        unused=_CTK,
    ),
    Flag(
        names=("driver-root-ctr-path", "container-driver-root"),
        variables=("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"),
        unused=_CTK,
    ),
    Flag(
        names=("device-discovery-strategy",),
        variables=("DEVICE_DISCOVERY_STRATEGY",),
        meaning=_discovery,
    ),
    Flag(
        names=("imex-channel-ids",),
        variables=("IMEX_CHANNEL_IDS",),
        meaning=_as("imex_channel_ids"),
    ),
    Flag(
        names=("imex-required",),
        variables=("IMEX_REQUIRED",),
        meaning=_flag("imex_required"),
        switch=True,
    ),
    Flag(names=("v",), unused="HAMI_TELEMETRY_LOG_LEVEL sets how much is logged"),
    Flag(names=("node-name",), variables=("NodeName", "NODE_NAME"), meaning=_as("node_name")),
    Flag(
        names=("device-split-count",),
        variables=("DEVICE_SPLIT_COUNT",),
        meaning=_as("device_split_count"),
        weak=True,
    ),
    Flag(
        names=("device-memory-scaling",),
        variables=("DEVICE_MEMORY_SCALING",),
        meaning=_as("device_memory_scaling"),
        weak=True,
    ),
    Flag(
        names=("device-cores-scaling",),
        variables=("DEVICE_CORES_SCALING",),
        meaning=_as("device_core_scaling"),
        weak=True,
    ),
    Flag(
        names=("disable-core-limit",),
        variables=("DISABLE_CORE_LIMIT",),
        meaning=_flag("disable_core_limit"),
        switch=True,
        weak=True,
    ),
    Flag(names=("resource-name",), meaning=_as("resource_name"), weak=True),
    Flag(names=(), variables=("HOOK_PATH",), meaning=_hook_path),
)
"""In the order of the sheet. DP_DISABLE_HEALTHCHECKS, DP_ENABLE_HEALTHCHECKS and KUBECONFIG are
settings of ours by the same name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HamiOptions:
    """What HAMi's flags and variables mean."""

    settings: Mapping[str, object] = field(default_factory=dict)
    """They count before the device configuration."""
    weak: Mapping[str, object] = field(default_factory=dict)
    """They count where no file sets another value."""
    notes: tuple[str, ...] = ()


def options_of(arguments: Sequence[str], variables: Mapping[str, str]) -> HamiOptions:
    """Reads a command line (without the program's name) and the environment.

    A flag counts before its variable, and our own variable of the same setting before both.

    Raises: InvalidRequest that names the flag or the variable, its value and what would be right.
    """
    given: dict[int, tuple[str, str]] = {}
    for index, flag in enumerate(FLAGS):
        name = next((name for name in flag.variables if name in variables), None)
        if name is not None:
            given[index] = (name, variables[name])
    for index, name, value in _command_line(arguments):
        given[index] = (name, value)
    settings: dict[str, object] = {}
    weak: dict[str, object] = {}
    notes = []
    for index, (name, value) in given.items():
        flag = FLAGS[index]
        if flag.meaning is None:
            notes.append(f"{name}: {flag.unused}")
            continue
        try:
            found = flag.meaning(value)
        except InvalidRequest as exc:
            raise InvalidRequest(f"{name}: {exc}") from exc
        ours = {k: v for k, v in found.items() if f"{OUR_PREFIX}{k.upper()}" not in variables}
        (weak if flag.weak else settings).update(ours)
    return HamiOptions(settings=settings, weak=weak, notes=tuple(notes))


def _command_line(arguments: Sequence[str]) -> list[tuple[int, str, str]]:
    """(index in FLAGS, the flag as written, value) for each flag, in order."""
    by_name = {name: index for index, flag in enumerate(FLAGS) for name in flag.names}
    found = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, equals, value = argument.lstrip("-").partition("=")
        if not argument.startswith("-") or name not in by_name:
            known = ", ".join(f"--{known}" for known in by_name)
            raise InvalidRequest(f"{argument}: no such flag; there are {known}")
        index = by_name[name]
        if not equals:
            if FLAGS[index].switch:
                value = "true"
            elif rest:
                value = rest.pop(0)
            else:
                raise InvalidRequest(f"--{name}: a value is wanted behind it")
        found.append((index, f"--{name}", value))
    return found
