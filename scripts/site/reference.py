"""Writes the site's reference from the source: settings, metrics, annotations, commands, APIs.

`python scripts/site/reference.py FOLDER`, with the members installed (`make docs` does). The texts
are the classes' own descriptions and the commands' own help: change them there. This module makes
the pages of commands and APIs; its neighbours make the others.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from annotations_page import annotations_page
from fastapi import FastAPI
from hami_metrics.questions.routes import bill_routes, question_routes
from hami_metrics.routes import create_app as metrics_app
from hami_scheduler.api.app import operator_routes
from hamictl.__main__ import app as hamictl_app
from hamictl.verbs.examples import EXAMPLES
from markup import table, text_of
from metrics_page import metrics_page
from prometheus_client import CollectorRegistry
from reasons_page import reasons_page
from settings_page import settings_page
from typer.main import get_command

WRITTEN = "<!-- Written by scripts/site/reference.py from the source. -->\n"


def commands_page() -> str:
    """Every verb of hamictl, with its examples and options."""
    root: Any = get_command(hamictl_app)
    # Typer has its own copy of click: its classes are those of the commands.
    context = root.context_class(root, info_name="hamictl")
    parts = ["# hamictl: every verb", text_of(root.help or "")]
    common: dict[str, Any] = {}
    for name in root.list_commands(context):
        parts += _command(root.get_command(context, name), f"hamictl {name}", context, common)
    rows = [_option(each) for each in common.values()]
    parts[2:2] = ["## Options of every verb", table(("Option", "Default", "Meaning"), rows)]
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
        yield table(("Option", "Default", "Meaning"), own)
    for name in verb.list_commands(context) if hasattr(verb, "list_commands") else ():
        yield from _command(verb.get_command(context, name), f"{path} {name}", context, common)


def _option(option: Any) -> tuple[str, str, str]:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    default = option.default
    plain = default is not None and not callable(default) and default not in ("", (), False)
    return (
        names,
        f"`{getattr(default, 'value', default)}`" if plain else "",
        text_of(option.help or ""),
    )


def apis_page() -> str:
    """Return the page of the answers of each HTTP API."""
    parts = [
        "# HTTP APIs",
        "From the services' OpenAPI documents. Who may call what: "
        "[hamictl on a cluster](../hamictl-on-a-cluster.md), [Security](../security.md).",
        "kube-scheduler's calls (`/filter`, `/bind`) are the extender protocol of "
        "Kubernetes, and `POST /webhook` takes its `AdmissionReview`: "
        "[the protocol](../protocol.md).",
    ]
    nothing: Any = SimpleNamespace()
    scheduler = FastAPI(title="hami-scheduler")
    scheduler.include_router(operator_routes(nothing))
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
                yield table(("Parameter", "In", "Kind", "Required"), rows)


def _schema(schema: Mapping[str, Any]) -> str:
    kinds = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    one = kinds[0]
    bounds = [f">= {one['minimum']:g}"] if "minimum" in one else []
    bounds += [f"<= {one['maximum']:g}"] if "maximum" in one else []
    text = " ".join([str(one.get("type", "")), ", ".join(bounds)]).strip()
    return f"{text}, default `{schema['default']}`" if schema.get("default") is not None else text


def main() -> None:
    """Write all pages."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in (
        ("settings", settings_page),
        ("metrics", metrics_page),
        ("reasons", reasons_page),
        ("annotations", annotations_page),
        ("hamictl", commands_page),
        ("api", apis_page),
    ):
        (folder / f"{name}.md").write_text(WRITTEN + page() + "\n")


if __name__ == "__main__":
    main()
