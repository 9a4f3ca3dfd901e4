"""The reference's page of settings, from the classes' own descriptions."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from hami_metrics.settings import Settings as MetricsSettings
from hami_node_agent.config.settings import Settings as AgentSettings
from hami_scheduler.settings import Settings as SchedulerSettings
from hami_webhook.settings import RenewalSettings
from hami_webhook.settings import Settings as WebhookSettings
from hamicommon import settings as shared
from hamictl.settings import Settings as HamictlSettings
from markup import table, text_of
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

SERVICES: Mapping[str, type[BaseSettings]] = {
    "hami-scheduler": SchedulerSettings,
    "hami-webhook": WebhookSettings,
    "hami-node-agent": AgentSettings,
    "hami-metrics": MetricsSettings,
    "hamictl": HamictlSettings,
    "hami-webhook-certificate": RenewalSettings,
}


def settings_page() -> str:
    """Every environment variable of every program."""
    groups = [
        each
        for each in vars(shared).values()
        if inspect.isclass(each)
        and issubclass(each, BaseSettings)
        and each.__module__ == shared.__name__
    ]
    parts = [
        "# Settings",
        "Every setting is an environment variable. What is not set has its default; a value that "
        "can't be used ends the program with one sentence that names the variable.",
        "## Shared by the services",
    ]
    for group in groups:
        prefix = str(group.model_config.get("env_prefix", "")) or "KUBECONFIG"
        parts += [f"### {prefix}: {_first_line(group)}".rstrip("."), _variables(group)]
    for name, settings in SERVICES.items():
        parts += [f"## {name}", _first_line(settings), _variables(settings)]
    return "\n\n".join(parts)


def _first_line(documented: Any) -> str:
    return (inspect.getdoc(documented) or "").partition("\n")[0]


def _variables(settings: type[BaseSettings]) -> str:
    prefix = str(settings.model_config.get("env_prefix", ""))
    schema = settings.model_json_schema()["properties"]
    rows = [
        (
            f"`{variable_of(prefix, name, field)}`",
            _kind(schema, name, field),
            _default(field),
            text_of(" ".join((field.description or "").split())),
        )
        for name, field in settings.model_fields.items()
        if not is_group(field)
    ]
    return table(("Variable", "Kind", "Default", "Meaning"), rows)


def is_group(field: FieldInfo) -> bool:
    """Return whether the field is a group of settings."""
    kind = field.annotation
    return inspect.isclass(kind) and issubclass(kind, BaseSettings)


def variable_of(prefix: str, name: str, field: FieldInfo) -> str:
    """Name of the environment variable of a field."""
    alias = field.validation_alias
    return alias if isinstance(alias, str) else f"{prefix}{name}".upper()


def _kind(schema: Mapping[str, Any], name: str, field: FieldInfo) -> str:
    alias = field.validation_alias
    found = schema.get(alias if isinstance(alias, str) else name, {})
    choices = [each for each in found.get("anyOf", [found]) if each.get("type") != "null"]
    one = choices[0] if choices else {}
    if "$ref" in one:
        return "text"
    if values := one.get("enum"):
        return ", ".join(f"`{value}`" for value in values)
    kinds = {"boolean": "true, false", "integer": "integer", "number": "number", "array": "list"}
    text = kinds.get(str(one.get("type")), "text")
    if one.get("format") == "path":
        text = "path"
    if one.get("format") == "password":
        text = "secret"
    least, most = one.get("minimum"), one.get("maximum")
    above = one.get("exclusiveMinimum")
    bounds = [
        *([f">= {least:g}"] if least is not None else []),
        *([f"> {above:g}"] if above is not None else []),
        *([f"<= {most:g}"] if most is not None else []),
    ]
    return f"{text} {', '.join(bounds)}".strip()


def _default(field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined:
        if field.default_factory is None:
            return "**required**"
        value = field.default_factory()  # type: ignore[call-arg]
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value is None or value in ("", ()):
        return ""
    if isinstance(value, bool):
        value = str(value).lower()
    if isinstance(value, tuple | list | frozenset):
        value = ",".join(map(str, value))
    if isinstance(value, BaseModel):
        return ""
    return f"`{value}`"
