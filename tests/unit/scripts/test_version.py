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
STAGES = re.split(r"^(?=FROM )", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)


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


def test_an_image_has_the_version_before_it_builds_wheels() -> None:
    building = [stage.split("pip wheel") for stage in STAGES if "pip wheel" in stage]

    assert len(building) == 3
    for before, _ in building:
        assert re.search(r"^COPY .*\bVERSION\b.* \./$", before, re.MULTILINE)
    assert "!VERSION" in (ROOT / ".dockerignore").read_text().split("\n")


@pytest.mark.parametrize(
    ("file", "count"),
    [
        ("docker-compose.yml", 7),
        ("k8s/compose/emulated.yml", 1),
        ("k8s/compose/k3s.yml", 1),
        (".env.example", 1),
    ],
)
def test_every_image_of_ours_is_of_the_version(file: str, count: int) -> None:
    text = (ROOT / file).read_text()

    tags = re.findall(r"HAMI_VERSION:?[-=]+([\d.]+)", text)

    assert len(tags) == count
    assert set(tags) == {VERSION}
