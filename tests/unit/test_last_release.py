"""Which release the roll-outs of `tests/faults` begin with."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.faults.replicas.versions import Release, last_release

CUT = "# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2026-11-23\n"


def git(project: Path, *argv: str) -> str:
    who = ("-c", "user.name=Test", "-c", "user.email=test@example.com", "-c", "tag.gpgsign=false")
    done = subprocess.run(
        ["git", *who, *argv], cwd=project, check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout.strip()


def commit(project: Path, changelog: str) -> str:
    """Make a commit and return its short name."""
    (project / "CHANGELOG.md").write_text(changelog)
    git(project, "add", "CHANGELOG.md")
    git(project, "commit", "--quiet", "--allow-empty", "--message", "change")
    return git(project, "log", "-1", "--format=%h")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init", "--quiet")
    commit(folder, "# Changelog\n\n## [Unreleased]\n")
    return folder


def test_a_tag_is_the_release(project: Path) -> None:
    commit(project, CUT)
    git(project, "tag", "v0.1.0")
    commit(project, f"{CUT}- later\n")

    assert last_release(project) == Release(name="v0.1.0", revision="v0.1.0")


def test_without_a_tag_it_is_the_commit_that_cut_the_changelog_and_its_name_has_that(
    project: Path,
) -> None:
    cut = commit(project, CUT)
    commit(project, f"{CUT}- later\n")

    assert last_release(project) == Release(
        name=f"v0.1.0 (no tag here: commit {cut} cut it)", revision=cut
    )


def test_where_nothing_was_released_there_is_none(project: Path) -> None:
    commit(project, "# Changelog\n\n## [Unreleased]\n- first\n")

    assert last_release(project) is None


def test_a_history_that_was_cut_off_has_none(project: Path, tmp_path: Path) -> None:
    commit(project, CUT)
    commit(project, f"{CUT}- later\n")
    commit(project, f"{CUT}- and later\n")
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth", "2", project.as_uri(), str(shallow))

    assert last_release(shallow) is None
