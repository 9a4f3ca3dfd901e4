"""The Helm chart's folder, Helm itself, and the objects that it renders."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

K8S = Path(__file__).parents[4] / "k8s"
CHART, BASE = K8S / "chart", K8S / "base"
HELM = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
Json = dict[str, Any]
Objects = dict[tuple[str, str], Json]
"""By kind and name."""
Render = Callable[..., Objects]


def helm(*argv: str) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    return subprocess.run([HELM, *argv], capture_output=True, text=True, timeout=120, check=False)


def key_of(each: Json) -> tuple[str, str]:
    """Kind and name; a Job's name without its version and digest."""
    name = each["metadata"]["name"]
    return each["kind"], re.sub(r"-\d+-\d+-\d+.*$", "", name) if each["kind"] == "Job" else name


def pod_of(each: Json) -> Json:
    spec = each.get("spec", {})
    spec = spec.get("jobTemplate", {}).get("spec", spec)
    return dict(spec.get("template", {}).get("spec", {})) if isinstance(spec, dict) else {}


def containers(each: Json) -> list[Json]:
    pod = pod_of(each)
    return [*pod.get("initContainers", ()), *pod.get("containers", ())]


def environment(container: Json) -> dict[str, Any]:
    return {entry["name"]: entry.get("value") for entry in container["env"]}


def base() -> Objects:
    """Return the objects of `k8s/base` that the chart has."""
    names = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    texts = [(BASE / name).read_text() for name in names if name != "namespace.yaml"]
    return {
        key_of(each): each
        for text in texts
        for each in yaml.load_all(text, yaml.CSafeLoader)
        if each
    }


def comparable(each: Json) -> Json:
    """Return it without the digest that makes new pods, and with YAML in texts parsed."""
    each["metadata"]["name"] = key_of(each)[1]
    metadata = each.get("spec", {}).get("template", {}).get("metadata", {})
    notes = metadata.get("annotations", {})
    notes.pop("hami.io/config", None)
    if not notes:
        metadata.pop("annotations", None)
    for name, text in each.get("data", {}).items():
        if name.endswith(".yaml"):
            each["data"][name] = yaml.safe_load(text)
    return each
