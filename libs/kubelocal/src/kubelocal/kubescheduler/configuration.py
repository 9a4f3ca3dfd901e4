"""Read the used part of a KubeSchedulerConfiguration, v1beta1 to v1.

In: the YAML file that the real kube-scheduler would read. Keys that do not matter are ignored.
"""

import re
from pathlib import Path
from typing import Annotated, Any

import yaml
from hamicommon.errors import InvalidRequest
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

_GROUP = "kubescheduler.config.k8s.io/"
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)")
_UNIT_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def _seconds(value: object) -> float:
    """Parse a Go duration such as "30s" or "1m30s", or an integer of nanoseconds."""
    if isinstance(value, int):
        return value * 1e-9
    text = str(value)
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is not a duration such as 30s")
    return float(sum(float(number) * _UNIT_S[unit] for number, unit in parts))


def _list(value: object) -> object:
    return [] if value is None else value


Seconds = Annotated[float, BeforeValidator(_seconds)]


class _Part(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True
    )


class ManagedResource(_Part):
    """Resource that an extender manages."""

    name: str
    ignored_by_scheduler: bool = False


class ExtenderConfig(_Part):
    """Entry of `extenders`."""

    url_prefix: str
    filter_verb: str = ""
    prioritize_verb: str = ""
    bind_verb: str = ""
    weight: int = Field(default=1, ge=0)
    http_timeout: Seconds = Field(default=5.0, alias="httpTimeout")
    node_cache_capable: bool = False
    managed_resources: Annotated[list[ManagedResource], BeforeValidator(_list)] = []
    ignorable: bool = False


class SchedulerProfile(_Part):
    """Profile, with the scheduler name to which pods refer."""

    scheduler_name: str = "default-scheduler"


class ClientConnection(_Part):
    """Path of the kubeconfig, unless the command line names one."""

    kubeconfig: str = ""


class SchedulerConfiguration(_Part):
    """Contents of the file."""

    api_version: str
    kind: str
    client_connection: ClientConnection = ClientConnection()
    pod_initial_backoff_seconds: float = Field(default=1.0, gt=0)
    pod_max_backoff_seconds: float = Field(default=10.0, gt=0)
    percentage_of_nodes_to_score: int = Field(default=0, ge=0, le=100)
    profiles: Annotated[list[SchedulerProfile], BeforeValidator(_list)] = []
    extenders: Annotated[list[ExtenderConfig], BeforeValidator(_list)] = []

    @property
    def scheduler_names(self) -> frozenset[str]:
        """Scheduler names of all profiles."""
        return frozenset(
            profile.scheduler_name for profile in self.profiles or [SchedulerProfile()]
        )


def read_configuration(path: Path) -> SchedulerConfiguration:
    """Read the file.

    Raises:
        InvalidRequest: it cannot be read, or a field has no sense; the message names the field.
    """
    try:
        document: Any = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as exc:
        raise InvalidRequest(f"{path}: {exc}") from exc
    if not isinstance(document, dict) or document.get("kind") != "KubeSchedulerConfiguration":
        raise InvalidRequest(f"{path}: kind must be KubeSchedulerConfiguration")
    if not str(document.get("apiVersion", "")).startswith(_GROUP):
        raise InvalidRequest(
            f"{path}: apiVersion {document.get('apiVersion')!r} must be {_GROUP}v1 or a beta of it"
        )
    try:
        configuration = SchedulerConfiguration.model_validate(document)
    except ValidationError as exc:
        first = exc.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(f"{path}: {where}: {first['msg']}") from exc
    binders = [extender for extender in configuration.extenders if extender.bind_verb]
    if len(binders) > 1:
        raise InvalidRequest(f"{path}: only one extender may have a bindVerb, {len(binders)} have")
    return configuration
