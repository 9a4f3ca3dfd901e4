"""scripts/release in a separate repository: the changes of a release, and its refusals."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
COPIES = (
    "k8s/chart/Chart.yaml",
    "docker-compose.yml",
    "k8s/compose/emulated.yml",
    "k8s/compose/k3s.yml",
    ".env.example",
)
FILES = ("scripts/release", "VERSION", *COPIES)
CHANGELOG = """# Changelog

## [Unreleased]

### Fixed
- Cards no longer melt.

## [0.1.0] - 2026-11-23

First version.
"""
# The rules that the real Makefile checks need minutes; what make answers is what counts here.
MAKEFILE = "lint:\n\t@test ! -e refused\ngenerate:\n\t@cp VERSION rendered\n"


class Repository:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def git(self, *arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=self.folder, capture_output=True, text=True, check=True
        ).stdout.strip()

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", "A change")

    def state(self) -> tuple[str, str, str]:
        return self.git("rev-parse", "HEAD"), self.git("status", "--porcelain"), self.git("tag")

    def release(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.folder / "scripts" / "release", *arguments],
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            env={key: value for key, value in os.environ.items() if key != "MAKEFLAGS"},
        )


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository(tmp_path / "hami")
    for name in FILES:
        (made.folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, made.folder / name)
    made.write("CHANGELOG.md", CHANGELOG)
    made.write("VERSION", "0.1.0\n")
    made.write("rendered", "0.1.0\n")
    for name in COPIES:
        now = (ROOT / "VERSION").read_text().strip()
        made.write(name, made.read(name).replace(now, "0.1.0"))
    made.write("Makefile", MAKEFILE)
    made.write(".gitignore", "dist/\n")
    made.git("init", "--quiet", "--initial-branch=main")
    for key, value in (("user.name", "A"), ("user.email", "a@b.c"), ("commit.gpgsign", "false")):
        made.git("config", key, value)
    made.commit()
    return made


def test_a_release_sets_the_version_and_cuts_the_changelog(repository: Repository) -> None:
    done = repository.release("0.2.0")

    assert (done.returncode, done.stderr) == (0, "")
    assert repository.read("VERSION") == "0.2.0\n"
    after = re.escape("## [Unreleased]\n\n## [0.2.0] - ") + r"\d{4}-\d\d-\d\d\n\n### Fixed\n"
    assert re.search(after, repository.read("CHANGELOG.md"))
    assert "## [0.1.0] - 2026-11-23" in repository.read("CHANGELOG.md")
    for name in COPIES:
        assert not re.search(r"\b0[.-]1[.-]0\b", repository.read(name)), name
    assert repository.read("docker-compose.yml").count("HAMI_VERSION:-0.2.0}") == 7
    assert repository.read("k8s/chart/Chart.yaml").count("ersion: 0.2.0\n") == 2
    assert repository.read("rendered") == "0.2.0\n"


def test_a_release_is_one_commit_with_its_tag_and_its_notes(repository: Repository) -> None:
    before = repository.git("rev-parse", "HEAD")

    done = repository.release("0.2.0")

    assert repository.git("rev-parse", "HEAD~1") == before
    assert repository.git("rev-parse", "v0.2.0^{commit}") == repository.git("rev-parse", "HEAD")
    assert repository.git("log", "-1", "--format=%s") == "release: cut 0.2.0"
    notes = "### Fixed\n- Cards no longer melt."
    assert repository.git("tag", "--list", "--format=%(contents)") == f"HAMi 0.2.0\n\n{notes}"
    assert repository.read("dist/v0.2.0-notes.md") == notes + "\n"
    assert repository.git("status", "--porcelain") == ""
    assert "git push --atomic origin main v0.2.0" in done.stdout


def test_two_releases_follow_each_other(repository: Repository) -> None:
    assert repository.release("0.2.0").returncode == 0
    changed = repository.read("CHANGELOG.md").replace(
        "[Unreleased]\n", "[Unreleased]\n\n### Added\n- Wings.\n"
    )
    repository.write("CHANGELOG.md", changed)
    repository.commit()

    assert repository.release("0.10.0").returncode == 0

    assert repository.read("dist/v0.10.0-notes.md") == "### Added\n- Wings.\n"


def assert_refused(repository: Repository, version: str, reason: str) -> None:
    before = repository.state()
    done = repository.release(version)
    assert done.returncode == 1
    assert reason in done.stderr
    assert repository.state() == before
    assert not (repository.folder / "dist").exists()


@pytest.mark.parametrize(("file", "status"), [("VERSION", " M"), ("new", "??")])
def test_what_is_not_committed_stops_a_release(
    repository: Repository, file: str, status: str
) -> None:
    repository.write(file, "0.1.0\n\n")

    assert_refused(repository, "0.2.0", f"these files are not committed:\n{status} {file}\n")


@pytest.mark.parametrize("left", ["", "### Added\n\n### Fixed\n"], ids=["empty", "headings alone"])
def test_nothing_under_unreleased_stops_a_release(repository: Repository, left: str) -> None:
    repository.write("CHANGELOG.md", f"# C\n\n## [Unreleased]\n{left}\n## [0.1.0] - x\n- y\n")
    repository.commit()

    assert_refused(repository, "0.2.0", "names no change under [Unreleased]")


@pytest.mark.parametrize("version", ["0.1.0", "0.0.9"])
def test_a_version_that_is_not_above_the_last_is_refused(
    repository: Repository, version: str
) -> None:
    assert_refused(repository, version, f"version {version} is not above the last one, 0.1.0")


@pytest.mark.parametrize("version", ["v0.2.0", "0.2", "0.2.0-rc.1", "0.02.0", "; rm -rf /"])
def test_a_version_is_three_numbers(repository: Repository, version: str) -> None:
    assert_refused(repository, version, f"version '{version}' is not three numbers, as 1.2.3")


def test_a_tag_that_exists_stops_a_release(repository: Repository) -> None:
    repository.git("tag", "v0.2.0")

    assert_refused(repository, "0.2.0", "tag v0.2.0 exists already")


def test_another_branch_than_main_is_refused(repository: Repository) -> None:
    repository.git("switch", "--quiet", "--create", "feature")

    assert_refused(repository, "0.2.0", "releases are cut on main; this is feature")


def test_a_failing_lint_stops_a_release(repository: Repository) -> None:
    repository.write("refused", "")
    repository.commit()

    assert_refused(repository, "0.2.0", "make lint fails")


def test_a_manifest_of_another_version_stops_a_release(repository: Repository) -> None:
    text = repository.read("docker-compose.yml").replace("0.1.0", "0.0.1")
    repository.write("docker-compose.yml", text)
    repository.commit()

    assert_refused(repository, "0.2.0", "docker-compose.yml does not carry the version 0.1.0")


@pytest.mark.parametrize("hook", ["commit-msg", "reference-transaction"])
def test_a_failure_on_the_way_leaves_everything_as_it_was(
    repository: Repository, hook: str
) -> None:
    """The second hook lets the commit pass and refuses the tag."""
    path = repository.folder / ".git" / "hooks" / hook
    refuse = 'if [ "$1" = prepared ] && grep -q refs/tags/; then exit 1; fi'
    path.write_text("#!/bin/sh\n" + ("exit 1\n" if hook == "commit-msg" else refuse + "\n"))
    path.chmod(0o755)

    assert_refused(repository, "0.2.0", "failed")


def test_no_version_is_answered_with_the_usage(repository: Repository) -> None:
    done = repository.release("")

    assert (done.returncode, done.stderr) == (2, "usage: make release VERSION=X.Y.Z\n")
