"""`python sandbox.py SPEC.json`: becomes a container's process, in its own mount namespace.

Stands in for a container runtime: the machine's files, with the container's volumes at the exact
paths of the manifest, its user and groups, its capabilities, no new privileges. It does not write
to the machine: folders that hold a mount point are overlaid. It imports none of our modules,
because it runs before the file system is complete.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

OWN_FOLDERS = ("run", "tmp")
"""Folders that are separate in every container."""
PASSED = ("proc", "sys", "dev")


def mount(*arguments: str) -> None:
    """Run mount(8)."""
    subprocess.run(["mount", *arguments], check=True)


def build(root: Path, targets: list[str]) -> None:
    """A root like the machine's, in memory where the container's mount points are."""
    mount("-t", "tmpfs", "tmpfs", str(root))
    (root / ".upper").mkdir()
    shadowed = {Path(target).parts[1] for target in targets} | {"root"}
    for entry in os.scandir("/"):
        place = root / entry.name
        if entry.is_symlink():
            place.symlink_to(Path(entry.path).readlink())
        elif entry.is_dir():
            place.mkdir()
            if entry.name in OWN_FOLDERS:
                mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", str(place))
            elif entry.name in shadowed and entry.name not in PASSED:
                overlay(root, entry.name, place)
            else:
                mount("--rbind", entry.path, str(place))
    # Only its owner may enter where the interpreter is; a container's user must.
    (root / "root").chmod(0o755)


def overlay(root: Path, name: str, place: Path) -> None:
    """Mount the root's folder again, with writes kept in memory."""
    upper, work = root / ".upper" / name, root / ".upper" / f"{name}.work"
    upper.mkdir()
    work.mkdir()
    layers = f"lowerdir=/{name},upperdir={upper},workdir={work}"
    mount("-t", "overlay", "overlay", "-o", layers, str(place))


def main() -> None:
    """Build the container and become it."""
    spec: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    root = Path(spec["root"])
    build(root, [each["target"] for each in spec["mounts"]])
    for number, each in enumerate(spec["mounts"]):
        place = root / f".volume-{number}"
        source = Path(each["source"])
        place.mkdir() if source.is_dir() else place.touch()
        mount("--rbind", str(source), str(place))
    os.chroot(root)
    os.chdir("/")
    for number, each in enumerate(spec["mounts"]):
        place, target = Path(f"/.volume-{number}"), Path(each["target"])
        if place.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            # What the host has is bound over as it is: it may be immutable.
            if not target.exists():
                target.touch()
        mount("--rbind", str(place), str(target))
        if each["read_only"] and target.parts[1] not in PASSED:
            mount("-o", "remount,bind,ro", str(target))
    os.chdir(spec["cwd"])
    os.environ.clear()
    os.environ.update(spec["env"])
    os.execvp("setpriv", ["setpriv", *spec["privileges"], "--", *spec["argv"]])


if __name__ == "__main__":
    main()
