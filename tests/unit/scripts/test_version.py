"""The file VERSION is the one source of the version: members, images and manifests follow it."""

from __future__ import annotations

import re
import subprocess
import zipfile
from pathlib import Path

import pytest
from hatchling.build import build_sdist, build_wheel
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

ROOT = Path(__file__).resolve().parents[3]
VERSION = (ROOT / "VERSION").read_text().strip()
MEMBERS = sorted(path.parent for path in ROOT.glob("*/*/pyproject.toml"))
DOCKERFILES = [*sorted(ROOT.glob("services/*/Dockerfile")), ROOT / "k8s/compose/Dockerfile"]


@pytest.mark.parametrize("member", MEMBERS, ids=lambda path: path.name)
def test_every_member_has_the_version_of_the_file(member: Path) -> None:
    metadata = ProjectMetadata(str(member), PluginManager())

    assert metadata.version == VERSION


def test_a_wheel_that_is_built_in_a_members_folder_has_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT / "services" / "webhook")

    name = build_wheel(str(tmp_path))

    assert name.startswith(f"hami_webhook-{VERSION}-")
    with zipfile.ZipFile(tmp_path / name) as wheel:
        metadata = wheel.read(f"hami_webhook-{VERSION}.dist-info/METADATA").decode()
    assert f"\nVersion: {VERSION}\n" in metadata


def test_a_wheel_that_is_built_from_a_source_archive_has_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing lies two folders above an unpacked archive."""
    monkeypatch.chdir(ROOT / "services" / "webhook")
    archive = build_sdist(str(tmp_path))
    subprocess.run(["tar", "-xf", archive], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path / archive.removesuffix(".tar.gz"))

    assert build_wheel(str(tmp_path)).startswith(f"hami_webhook-{VERSION}-")


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda path: path.parent.name)
def test_an_image_has_the_version_before_it_builds_wheels(file: Path) -> None:
    [before, _] = file.read_text().split("pip wheel")

    assert re.search(r"^COPY .*\bVERSION\b.* \./$", before, re.MULTILINE)
    assert "!VERSION" in (ROOT / ".dockerignore").read_text().split("\n")


@pytest.mark.parametrize("file", ["k8s/base/kustomization.yaml", "docker-compose.yml"])
def test_every_image_of_ours_is_of_the_version(file: str) -> None:
    text = (ROOT / file).read_text()

    tags = re.findall(r"(?:name: hami-[a-z-]+\n\s+newTag: |image: hami-[a-z-]+:)([\d.]+)", text)

    assert len(tags) >= 4
    assert set(tags) == {VERSION}
