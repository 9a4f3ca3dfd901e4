"""Publication of a release: `scripts/publish`, and the workflows that call it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.k8s.chart.rendered import CHART, HELM, containers, helm

ROOT = Path(__file__).resolve().parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
VERSION = (ROOT / "VERSION").read_text().strip()
IMAGES = [f"hami-{name}" for name in ("scheduler", "webhook", "node-agent", "metrics")]
IMAGES += ["postgres", "redis", "nats"]
DIGESTS = {name: f"sha256:{number:064x}" for number, name in enumerate(IMAGES)}
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
TAGS = {name: VALUES[name]["image"]["tag"] for name in ("postgres", "redis", "nats")}
REGISTRIES = {"REGISTRY": "registry.example/hami", "KUBERNETES_REGISTRY": "kubernetes.example"}


def publish(folder: Path, what: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "scripts" / "publish", what],
        env={"PATH": os.environ["PATH"], "DIST": str(folder), **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.skipif(HELM is None, reason="helm is not installed")
def test_the_packaged_chart_names_the_images_of_its_release(tmp_path: Path) -> None:
    digests = "".join(f"{name} {digest}\n" for name, digest in DIGESTS.items())
    (tmp_path / "images.txt").write_text(digests)

    done = publish(tmp_path, "chart", **REGISTRIES)

    assert done.returncode == 0, done.stderr
    package = tmp_path / f"hami-{VERSION}.tgz"
    rendered = helm("template", "x", str(package), "--kube-version", "1.36.2")
    assert rendered.returncode == 0, rendered.stderr
    images = {
        container["image"]
        for each in yaml.load_all(rendered.stdout, yaml.CSafeLoader)
        if each
        for container in containers(each)
    }
    images.remove("kubernetes.example/kube-scheduler:v1.36.2")
    tags = {name: VERSION if name.startswith("hami-") else TAGS[name] for name in IMAGES}
    assert images == {
        f"registry.example/hami/{name}:{tags[name]}@{DIGESTS[name]}" for name in IMAGES
    }


def test_an_image_that_the_chart_does_not_have_stops_it(tmp_path: Path) -> None:
    (tmp_path / "images.txt").write_text(f"hami-other {DIGESTS['nats']}\n")

    done = publish(tmp_path, "chart", **REGISTRIES)

    assert (done.returncode, done.stderr) == (
        1,
        "publish: k8s/chart/values.yaml has no image hami-other\n",
    )


@pytest.mark.parametrize("missing", REGISTRIES)
def test_a_variable_that_is_not_set_is_named(tmp_path: Path, missing: str) -> None:
    done = publish(tmp_path, "chart", **{k: v for k, v in REGISTRIES.items() if k != missing})

    assert done.returncode == 1
    assert done.stderr.startswith(f"publish: {missing} is not set; it is ")


def test_notes_are_the_section_of_the_version(tmp_path: Path) -> None:
    done = publish(tmp_path, "notes")

    assert done.returncode == 0, done.stderr
    notes = (tmp_path / "notes.md").read_text()
    assert notes in (ROOT / "CHANGELOG.md").read_text().partition(f"## [{VERSION}]")[2]
    assert "\n## [" not in notes


def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text())["jobs"].values()
    return [step for job in jobs for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_and_steps_are_scripts_of_this_repository(workflow: Path) -> None:
    used = [step["uses"] for step in steps(workflow) if "uses" in step]
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action) for action in used)
    called = re.findall(r"run: (\.?[\w./-]+)", workflow.read_text())
    for command in called:
        assert "/" not in command or os.access(ROOT / command, os.X_OK), command
    assert any("/" in command for command in called)


def test_the_release_publishes_each_part() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()

    assert re.findall(r"scripts/publish (\w+)", text) == ["wheels", "images", "chart", "notes"]
