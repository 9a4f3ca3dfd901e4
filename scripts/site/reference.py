"""Writes the site's reference from the source: settings, metrics, commands, HTTP APIs.

`python scripts/site/reference.py FOLDER`, with the members installed (`make docs` does). What
stands here is in the classes' own descriptions and the commands' own help: change it there.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fastapi import FastAPI
from hami_metrics.exposition.families import build_info, families
from hami_metrics.instruments import MetricsInstruments
from hami_metrics.questions.bills import bill_routes
from hami_metrics.questions.routes import question_routes
from hami_metrics.routes import create_app as metrics_app
from hami_metrics.settings import Settings as MetricsSettings
from hami_node_agent.config.settings import Settings as AgentSettings
from hami_scheduler.api import v1
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.settings import Settings as SchedulerSettings
from hami_webhook.metrics import WebhookInstruments
from hami_webhook.settings import RenewalSettings
from hami_webhook.settings import Settings as WebhookSettings
from hamicommon import settings as shared
from hamictl.__main__ import app as hamictl_app
from hamictl.settings import Settings as HamictlSettings
from hamictl.verbs.examples import EXAMPLES
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings
from typer.main import get_command

WRITTEN = "<!-- Written by scripts/site/reference.py from the source. -->\n"
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
            f"`{_variable(prefix, name, field)}`",
            _kind(schema, name, field),
            _default(field),
            _text(field.description or ""),
        )
        for name, field in settings.model_fields.items()
        if not _is_group(field)
    ]
    return _table(("Variable", "Kind", "Default", "Meaning"), rows)


def _is_group(field: FieldInfo) -> bool:
    kind = field.annotation
    return inspect.isclass(kind) and issubclass(kind, BaseSettings)


def _variable(prefix: str, name: str, field: FieldInfo) -> str:
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


def metrics_page() -> str:
    """Every metric of every program."""
    parts = [
        "# Metrics",
        "What each number means for an operator, and what is worth an alert, is in "
        "[Monitoring](../monitoring.md).",
    ]
    snapshot = SimpleNamespace(
        cards=(),
        slices=(),
        instances=(),
        quotas=(),
        allocations_by_state={},
        decisions_by_outcome={},
        pending={},
        heartbeats={},
        taken_at=None,
    )
    ledger = [*families(snapshot, now=None), build_info("1", "unknown")]  # type: ignore[arg-type]
    for title, found in (
        ("hami-scheduler, each replica", _registered(SchedulerInstruments().registry)),
        ("hami-webhook, each replica", _registered(WebhookInstruments().registry)),
        ("hami-metrics, the service", _registered(MetricsInstruments().registry)),
        ("hami-metrics, the cluster by its ledger", map(_metric, ledger)),
        ("hami-node-agent, its node", map(_metric, _of_a_node())),
    ):
        parts += [f"## {title}", _table(("Metric", "Kind", "Labels", "Help"), sorted(found))]
    return "\n\n".join(parts)


def _of_a_node() -> Iterator[Metric]:
    from hami_node_agent.allocation.late_binding_rules import BindingWay
    from hami_node_agent.devices.mig_partition import PartitionPlan
    from hami_node_agent.enforcement.checker import Checked
    from hami_node_agent.metrics import collectors, health, limits, mig
    from hami_node_agent.usage.regions.directory import Regions
    from hami_node_agent.usage.sampler import Observation
    from hamicommon.process.bulkhead import Bulkhead

    nothing: Any = SimpleNamespace(
        xids_seen={},
        health_changes={},
        devices=tuple,
        to_remove=0,
        removal_failures={},
        cards=(),
        done={},
        latest=PartitionPlan(),
    )
    for each in (
        collectors.NodeCollector(Observation, list, node="", version=""),
        health.RegionCollector(Regions(Path("/nonexistent"))),
        health.CardCollector(nothing, node=""),
        health.BindingCollector(BindingWay(late=False, reason="")),
        health.BulkheadCollector(Bulkhead()),
        health.RemovalCollector(nothing),
        health.AuthorityCollector({}),
        limits.LimitCollector(Checked, lambda _uid: None, stale_s=1.0),
        mig.MigCollector(nothing),
    ):
        yield from each.collect()


def _registered(registry: CollectorRegistry) -> Iterator[tuple[str, ...]]:
    for collector in list(registry._collector_to_names):
        labels = tuple(getattr(collector, "_labelnames", ()))
        for metric in collector.collect():
            yield _metric(metric, labels)


def _metric(metric: Metric, labels: Iterable[str] = ()) -> tuple[str, ...]:
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    found = [*labels] or [*getattr(metric, "_labelnames", ())]
    return (
        f"`{name}`",
        metric.type,
        ", ".join(f"`{each}`" for each in found),
        _text(metric.documentation),
    )


def commands_page() -> str:
    """Every verb of hamictl, with its examples and options."""
    root: Any = get_command(hamictl_app)
    # Typer brings a click of its own: its classes are those of the commands.
    context = root.context_class(root, info_name="hamictl")
    parts = ["# hamictl: every verb", _text(root.help or "")]
    common: dict[str, Any] = {}
    for name in root.list_commands(context):
        parts += _command(root.get_command(context, name), f"hamictl {name}", context, common)
    rows = [_option(each) for each in common.values()]
    parts[2:2] = ["## Options of every verb", _table(("Option", "Default", "Meaning"), rows)]
    return "\n\n".join(parts)


def _command(verb: Any, path: str, above: Any, common: dict[str, Any]) -> Iterator[str]:
    context = verb.context_class(verb, info_name=path.rpartition(" ")[2], parent=above)
    yield f"## {path}" if path.count(" ") == 1 else f"### {path}"
    yield inspect.cleandoc(verb.help or "")
    yield f"```text\n{path} {' '.join(verb.collect_usage_pieces(context))}\n```"
    if shown := EXAMPLES.get(str(verb.name)):
        yield "```console\n" + "\n".join(f"$ {line}" for line in shown) + "\n```"
    own = []
    for each in verb.params:
        if each.param_type_name == "option" and not each.hidden and each.name != "help":
            if getattr(each, "rich_help_panel", None) == "Every verb":
                common.setdefault(str(each.name), each)
            else:
                own.append(_option(each))
    if own:
        yield _table(("Option", "Default", "Meaning"), own)
    for name in verb.list_commands(context) if hasattr(verb, "list_commands") else ():
        yield from _command(verb.get_command(context, name), f"{path} {name}", context, common)


def _option(option: Any) -> tuple[str, str, str]:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    default = option.default
    plain = default is not None and not callable(default) and default not in ("", (), False)
    return (
        names,
        f"`{getattr(default, 'value', default)}`" if plain else "",
        _text(option.help or ""),
    )


def apis_page() -> str:
    """What each HTTP API answers."""
    parts = [
        "# HTTP APIs",
        "From the services' OpenAPI documents. Who may call what: "
        "[hamictl on a cluster](../hamictl-on-a-cluster.md), [Security](../security.md).",
        "kube-scheduler's calls (`/filter`, `/prioritize`, `/bind`) are the extender protocol of "
        "Kubernetes, and `POST /webhook` takes its `AdmissionReview`: "
        "[the protocol](../protocol.md).",
    ]
    nothing: Any = SimpleNamespace()
    scheduler = FastAPI(title="hami-scheduler")
    for router in (
        v1.ledger_routes(nothing),
        v1.pod_routes(nothing, nothing, nothing),
        v1.letter_routes(nothing),
    ):
        scheduler.include_router(router)
    routers = [question_routes(nothing, nothing), bill_routes(nothing, nothing, None)]
    metrics = metrics_app(CollectorRegistry(), list, None, routers)
    for title, app in (
        ("hami-scheduler, the operators' port (9444)", scheduler),
        ("hami-metrics (9395)", metrics),
    ):
        parts += [f"## {title}", *_paths(app.openapi())]
    return "\n\n".join(parts)


def _paths(document: Mapping[str, Any]) -> Iterator[str]:
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            yield f"### {verb.upper()} {path}".replace("{", "&#123;").replace("}", "&#125;")
            if about := operation.get("description"):
                yield about
            rows = [
                (
                    f"`{each['name']}`",
                    each["in"],
                    _schema(each["schema"]),
                    "yes" if each.get("required") else "",
                )
                for each in operation.get("parameters", ())
            ]
            if rows:
                yield _table(("Parameter", "In", "Kind", "Required"), rows)


def _schema(schema: Mapping[str, Any]) -> str:
    kinds = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    one = kinds[0]
    bounds = [f">= {one['minimum']:g}"] if "minimum" in one else []
    bounds += [f"<= {one['maximum']:g}"] if "maximum" in one else []
    text = " ".join([str(one.get("type", "")), ", ".join(bounds)]).strip()
    return f"{text}, default `{schema['default']}`" if schema.get("default") is not None else text


def _text(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def main() -> None:
    """Writes all pages."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in (
        ("settings", settings_page),
        ("metrics", metrics_page),
        ("hamictl", commands_page),
        ("api", apis_page),
    ):
        (folder / f"{name}.md").write_text(WRITTEN + page() + "\n")


if __name__ == "__main__":
    main()
