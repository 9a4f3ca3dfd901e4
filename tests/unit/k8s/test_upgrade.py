"""The manifests of the last release can be updated to these in place."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.faults.replicas.versions import last_release
from tests.unit.k8s.chart.rendered import BASE, Objects, key_of

PROJECT = Path(__file__).parents[3]
RELEASE = last_release()
IMMUTABLE = {
    "Deployment": ("selector",),
    "DaemonSet": ("selector",),
    "StatefulSet": ("selector", "serviceName", "volumeClaimTemplates", "podManagementPolicy"),
}
"""Immutable fields of `spec`, by the API server's rules."""

pytestmark = pytest.mark.skipif(RELEASE is None, reason="the history has no release")


def objects_of(texts: dict[str, str]) -> Objects:
    return {
        key_of(each): each
        for name, text in sorted(texts.items())
        if not name.endswith("kustomization.yaml")
        for each in yaml.load_all(text, yaml.CSafeLoader)
        if each
    }


@pytest.fixture(scope="module")
def before() -> Objects:
    assert RELEASE is not None

    def git(*argv: str) -> str:
        done = subprocess.run(
            ["git", *argv], cwd=PROJECT, check=True, capture_output=True, text=True, timeout=60
        )
        return done.stdout

    names = git("ls-tree", "-r", "--name-only", RELEASE.revision, "k8s/base").split()
    return objects_of({n: git("show", f"{RELEASE.revision}:{n}") for n in names})


@pytest.fixture(scope="module")
def after() -> Objects:
    return objects_of({path.name: path.read_text() for path in BASE.glob("*.yaml")})


def test_no_field_changes_that_may_not(before: Objects, after: Objects) -> None:
    kept = before.keys() & after.keys()
    assert {kind for kind, _ in kept} >= IMMUTABLE.keys()
    for kind, name in kept:
        old, new = before[kind, name], after[kind, name]
        for field in IMMUTABLE.get(kind, ()):
            assert old["spec"].get(field) == new["spec"].get(field), (kind, name, field)
        assert old.get("roleRef") == new.get("roleRef"), (kind, name)


def test_what_is_no_longer_there_is_removed_by_a_line_of_the_pages(
    before: Objects, after: Objects
) -> None:
    text = (PROJECT / "docs" / "operations.md").read_text()
    deleted = {
        (kind, name)
        for line in re.findall(r"^kubectl .*?delete (.*)$", text, re.MULTILINE)
        for kinds, _, rest in [line.partition(" ")]
        for kind in kinds.split(",")
        for name in rest.split()
        if not name.startswith("-")
    }

    gone = {(kind.lower(), name) for kind, name in before.keys() - after.keys()}

    assert deleted
    assert gone <= deleted
