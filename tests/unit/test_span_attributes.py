"""The spans of all services name the same thing alike: `k8s.*` of OpenTelemetry, ours `hami.*`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from hamicommon.telemetry import pod_attributes

SERVICES = Path(__file__).parents[2] / "services"
KUBERNETES = {"k8s.node.name", "k8s.container.name"}
"""Attributes of the semantic conventions; a pod's own three come from `pod_attributes`."""
_SETTERS = {"set_attribute", "set_attributes", "start_as_current_span", "start_span"}
_MAKERS = {"attributes"}
"""Functions that return what a span is given."""


def _keys(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr not in _SETTERS:
                continue
            if node.func.attr == "set_attribute" and isinstance(node.args[0], ast.Constant):
                yield str(node.args[0].value)
            given = [each.value for each in node.keywords if each.arg == "attributes"]
            parts = given + (node.args if node.func.attr == "set_attributes" else [])
        elif isinstance(node, ast.FunctionDef) and node.name in _MAKERS:
            parts = [node]
        else:
            continue
        for part in parts:
            for inner in ast.walk(part):
                if isinstance(inner, ast.Dict):
                    yield from (k.value for k in inner.keys if isinstance(k, ast.Constant))
                if isinstance(inner, ast.Subscript) and isinstance(inner.ctx, ast.Store):
                    yield str(ast.literal_eval(inner.slice))


@pytest.mark.parametrize("service", ["scheduler", "webhook", "node-agent", "metrics"])
def test_every_attribute_is_of_one_vocabulary(service: str) -> None:
    found = {
        key
        for path in (SERVICES / service / "src").rglob("*.py")
        for key in _keys(ast.parse(path.read_text()))
    }

    # The metrics service begins no spans itself.
    assert bool(found) == (service != "metrics")
    for key in found:
        assert key in KUBERNETES or key.startswith("hami."), key
        assert not key.startswith(("hami.pod", "hami.node")), key


def test_what_is_not_known_of_a_pod_is_left_out() -> None:
    assert pod_attributes(namespace="n", name="p") == {
        "k8s.namespace.name": "n",
        "k8s.pod.name": "p",
    }
