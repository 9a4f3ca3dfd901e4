"""The last tagged version beside this one: which code each process runs is in a file.

A folder on PYTHONPATH has a `sitecustomize` that every Python process reads before anything of
ours: the processes that the file names run this version's code, all others that of the tag, as it
was checked out and built (its Python packages, migrations and native parts; third-party packages
are those of this environment). So one process after the other changes its version when it is
restarted, as pods do in a roll-out.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

PROJECT = Path(__file__).parents[2]
BUILD_TIMEOUT_S = 1200

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


def last_tag() -> str | None:
    """The newest version before this commit; None where the history has no tags."""
    done = subprocess.run(
        ["git", "describe", "--tags", "--abbrev=0", "--match=v*", "HEAD^"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout.strip() or None


@dataclass(slots=True)
class Versions:
    """The old code, and who runs which."""

    tag: str
    old: Path
    """Its checkout, built."""
    folder: Path
    """For PYTHONPATH."""
    _new: dict[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """Of every process."""
        return {"PYTHONPATH": str(self.folder)}

    def choose(self, program: str, *, new: bool, **environment: str) -> None:
        """From its next start on, console script `program` runs this version, or the old one.

        `environment`: what this version's manifests give it that the old one's do not.
        """
        if new:
            self._new[program] = environment
        else:
            self._new.pop(program, None)
        self.write()

    def write(self) -> None:
        """At once, because a process may be starting."""
        sources = [*(self.old / "libs").glob("*/src"), *(self.old / "services").glob("*/src")]
        chosen = {"old": [str(each) for each in sorted(sources)], "new": self._new}
        whole = self.folder / "versions.json.written"
        whole.write_text(json.dumps(chosen))
        whole.replace(self.folder / "versions.json")


@contextmanager
def versions(folder: Path, tag: str) -> Iterator[Versions]:
    """Checks the tag out and builds its native parts; all processes are of it at first."""
    old, choosing = folder / "old", folder / "choosing"
    old.mkdir(parents=True)
    choosing.mkdir()
    packed = folder / "old.tar"
    argv = ["git", "archive", "--format=tar", f"--output={packed}", tag]
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
    found = Versions(tag=tag, old=old, folder=choosing)
    (choosing / "sitecustomize.py").write_text(_CHOOSES)
    found.write()
    yield found
