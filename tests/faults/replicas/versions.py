"""The last release beside this version: a file names the code that each process runs.

A folder on PYTHONPATH has a `sitecustomize` that every Python process reads before any code of
ours. The processes that the file names run this version's code, all others the release's, as it was
checked out and built (its Python packages, migrations and native parts; third-party packages are
those of this environment). So each process changes its version when it is restarted, as pods do in
a roll-out.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PROJECT = Path(__file__).parents[3]
BUILD_TIMEOUT_S = 1200
RELEASED = re.compile(r"^## \[(\d+\.\d+\.\d+)\]", re.MULTILINE)
"""The newest one's heading comes first."""

_CHOOSES = """
import json, os, pathlib, sys
_folder = pathlib.Path(__file__).parent
_name = pathlib.Path(sys.orig_argv[1]).name if len(sys.orig_argv) > 1 else ""
_chosen = json.loads((_folder / "versions.json").read_text())
_new = _chosen["new"].get(_name)
if _new is None:
    sys.path[:0] = _chosen["old"]
else:
    os.environ.update(_new)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The newest one before this commit."""

    name: str
    """Such as v0.1.0, with the commit where no tag has that name."""
    revision: str
    """For git: its tag, or the commit that cut it in CHANGELOG.md."""


def last_release(project: Path = PROJECT) -> Release | None:
    """The release by its tag, otherwise by the changelog; None without either."""
    tag = _git(project, "describe", "--tags", "--abbrev=0", "--match=v*", "HEAD^")
    if tag:
        return Release(name=tag, revision=tag)
    heading = RELEASED.search((project / "CHANGELOG.md").read_text())
    # The first commit of a shallow history seems to have written every line.
    if heading is None or _git(project, "rev-parse", "--is-shallow-repository") != "false":
        return None
    cuts = _git(project, "log", "--format=%h", f"-S{heading[0]}", "HEAD^", "--", "CHANGELOG.md")
    if not cuts:
        return None
    commit = cuts.splitlines()[-1]
    return Release(name=f"v{heading[1]} (no tag here: commit {commit} cut it)", revision=commit)


def _git(project: Path, *argv: str) -> str:
    """Return git's answer; empty if the command fails."""
    done = subprocess.run(
        ["git", *argv], cwd=project, capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout.strip()


@dataclass(slots=True)
class Versions:
    """The old code, and each program's version."""

    old: Path
    """The checkout of the old version, built."""
    folder: Path
    """For PYTHONPATH."""
    _new: dict[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """Environment of every process."""
        return {"PYTHONPATH": str(self.folder)}

    def choose(self, program: str, *, new: bool, **environment: str) -> None:
        """Let console script `program` run this version, or the old one, from its next start on.

        `environment`: variables that only this version's manifests give it.
        """
        if new:
            self._new[program] = environment
        else:
            self._new.pop(program, None)
        self.write()

    def write(self) -> None:
        """Replace the file: a process may be starting."""
        sources = [*(self.old / "libs").glob("*/src"), *(self.old / "services").glob("*/src")]
        chosen = {"old": [str(each) for each in sorted(sources)], "new": self._new}
        whole = self.folder / "versions.json.written"
        whole.write_text(json.dumps(chosen))
        whole.replace(self.folder / "versions.json")


@contextmanager
def versions(folder: Path, release: Release) -> Iterator[Versions]:
    """Check the release out and build its native parts; at first all processes run it."""
    old, choosing = folder / "old", folder / "choosing"
    old.mkdir(parents=True)
    choosing.mkdir()
    packed = folder / "old.tar"
    argv = ["git", "archive", "--format=tar", f"--output={packed}", release.revision]
    subprocess.run(argv, cwd=PROJECT, check=True, timeout=120)
    subprocess.run(["tar", "-x", "-C", str(old), "-f", str(packed)], check=True, timeout=120)
    built = subprocess.run(
        ["make", "-s", "-C", str(old / "native")],
        env={**os.environ, "MAKEFLAGS": ""},
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert built.returncode == 0, built.stderr[-3000:]
    found = Versions(old=old, folder=choosing)
    (choosing / "sitecustomize.py").write_text(_CHOOSES)
    found.write()
    yield found
