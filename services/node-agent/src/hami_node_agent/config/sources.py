"""Combine command line, variables and files into settings.

Values count in this order: a flag of HAMi's, our variable, HAMi's variable, the node's entry in
`config.json`, the device configuration, values that HAMi's plugin reads but ignores, our default.
`hami_flags.py`, `hami_node_config.py` and hamicommon's `device_config` read them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hamicommon import device_config
from hamicommon.errors import InvalidRequest
from hamicommon.settings import describe, unknown_variables
from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource

from hami_node_agent.config import hami_node_config
from hami_node_agent.config.hami_flags import LAST_VERSION, OUR_PREFIX, RETIRED, options_of
from hami_node_agent.config.settings import Settings

_FROM_DEVICE_CONFIG = {
    "resource_name": "resource_count_name",
    "device_split_count": "device_split_count",
    "device_memory_scaling": "device_memory_scaling",
    "device_core_scaling": "device_core_scaling",
    "preconfigured_device_memory_mib": "pre_configured_device_memory",
    "disable_core_limit": "disable_core_limit",
    "enable_numa_topology": "enable_numa_topology",
    "libcuda_log_level": "lib_cuda_log_level",
    "mig_profile_allowlist": "mig_profile_allowlist",
}
"""Setting -> its key in the block `nvidia`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredSettings:
    """Settings, and a sentence for each option without effect."""

    settings: Settings
    notes: tuple[str, ...] = ()


def environment() -> Mapping[str, str]:
    """Return this process's environment variables."""
    source = EnvSettingsSource(Settings, case_sensitive=True)
    return {name: value for name, value in source.env_vars.items() if value is not None}


def read_configuration(
    arguments: Sequence[str], variables: Mapping[str, str]
) -> ConfiguredSettings:
    """Read all sources again.

    Raises: InvalidRequest that names the flag, the variable or the file and its key.
    """
    options = options_of(arguments, variables)
    operators = _settings(options.settings)
    notes = list(options.notes)
    files = dict(options.weak)
    if operators.device_config_file is not None:
        files |= _of_device_config(operators, notes)
    entry = hami_node_config.load(hami_node_config.PATH, operators.node_name)
    files |= entry.settings
    notes += (f"{hami_node_config.PATH}: {note}" for note in entry.notes)
    if operators.legacy_metrics:
        notes.append(f"HAMi's older metric names are deprecated and read until {LAST_VERSION}")
    added = {k: v for k, v in files.items() if k not in operators.model_fields_set}
    retired = (f"{OUR_PREFIX}{name}" for flag in RETIRED for name in flag.variables.split())
    notes += (
        f"{name} is ignored: it is no setting"
        for name in unknown_variables(Settings, variables, others=tuple(retired))
    )
    return ConfiguredSettings(settings=_settings({**options.settings, **added}), notes=tuple(notes))


def _settings(options: Mapping[str, object]) -> Settings:
    try:
        return Settings(**options)  # type: ignore[arg-type]  # pydantic checks what they are
    except ValidationError as exc:
        raise describe(exc, Settings) from exc


def _of_device_config(settings: Settings, notes: list[str]) -> dict[str, object]:
    path = settings.device_config_file
    config = device_config.load(path)
    notes += (f"{path}: {note}" for note in config.notes)
    if config.nvidia is None:
        raise InvalidRequest(f"{path}: it has no block nvidia")
    if config.nvidia.device_split_count == 0:
        raise InvalidRequest(f"{path}: nvidia.deviceSplitCount is 0: expected at least 1")
    return {name: getattr(config.nvidia, key) for name, key in _FROM_DEVICE_CONFIG.items()}
