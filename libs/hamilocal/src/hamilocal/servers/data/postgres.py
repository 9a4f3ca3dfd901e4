"""Configure and check a PostgreSQL server on a loopback port, with persistent data.

`prepare` makes the data folder if it is not there (in one step: an interrupted first start leaves
nothing behind), clears the lock file of a server that was killed, and returns the plan. Durable by
default: fsync and synchronous_commit are on.
"""

import shutil
import signal
import subprocess
import tempfile
from functools import partial
from pathlib import Path

from hamilocal.servers.binaries import (
    UnprivilegedCommand,
    find_unprivileged,
    give_to,
    postgres_home,
    reachable_folder,
    reachable_installation,
)
from hamilocal.supervisor.children import identity_of
from hamilocal.supervisor.plan import NotReadyError, ServerError, ServerPlan
from hamilocal.supervisor.ports import LOOPBACK, free_port

DATABASE = "hami"
SUPERUSER = "hami"
MAX_CONNECTIONS = 200
_LOCK_STATUS_LINE = 7  # of postmaster.pid, counted from 0 (PostgreSQL, pidfile.h)
_INITDB_TIMEOUT_S = 120.0
# What a database on a developer's machine needs; the rest stays at PostgreSQL's defaults.
_SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",  # in a deep project folder its path would exceed 107 characters
    "max_connections": str(MAX_CONNECTIONS),
    "logging_collector": "off",  # the log goes to standard error, into our own file
    "log_min_messages": "warning",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
_NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


def prepare(
    folder: Path,
    *,
    port: int | None = None,
    durable: bool = True,
    password: str | None = None,
    name: str = "postgres",
) -> ServerPlan:
    """Create the data folder if necessary; return how to run the server.

    With a password (it counts when the folder is made) connections use SCRAM, otherwise everybody
    on loopback is trusted. `durable=False` is for tests: commits survive a killed server but not
    a killed machine.

    Raises:
        ServerError: a server already runs on this folder, or initdb failed.
    """
    way = find_unprivileged()
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    home_folder = reachable_folder(folder, way)
    binaries = reachable_installation(postgres_home(), home_folder, way) / "bin"
    data = home_folder / "data"
    if not (data / "PG_VERSION").exists():
        _initialise(data, binaries=binaries, way=way, password=password)
    give_to(data, way)
    clear_stale_lock(data)
    port = port or free_port()
    settings = _SETTINGS | ({} if durable else _NOT_DURABLE) | {"port": str(port)}
    options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
    secret = "" if password is None else f":{password}"
    return ServerPlan(
        name=name,
        prefix=way.prefix,
        before_start=partial(clear_stale_lock, data),
        argv=(str(binaries / "postgres"), "-D", str(data), *options),
        cwd=data,
        log_path=folder / f"{name}.log",
        url=f"postgresql://{SUPERUSER}{secret}@{LOOPBACK}:{port}/{DATABASE}",
        port=port,
        probe=partial(_probe, data),
        stop_signal=signal.SIGINT,  # "fast": roll back and stop; SIGTERM would wait for the clients
    )


def _probe(data: Path) -> None:
    """Check like `pg_ctl`: only the server of this folder writes its status into this file."""
    try:
        status = (data / "postmaster.pid").read_text().splitlines()[_LOCK_STATUS_LINE].strip()
    except (OSError, IndexError) as exc:
        raise NotReadyError(f"PostgreSQL has not written its status into {data} yet") from exc
    if status != "ready":
        raise NotReadyError(f"PostgreSQL reports that it is {status}")


def clear_stale_lock(data: Path) -> None:
    """Remove `postmaster.pid` if the server that wrote it is gone.

    PostgreSQL itself keeps the file if any process has that pid now, which after a restart of a
    container is likely.

    Raises:
        ServerError: the server that wrote it still runs on this folder.
    """
    lock = data / "postmaster.pid"
    try:
        pid = int(lock.read_text().split("\n", 1)[0])
    except FileNotFoundError:
        return
    except ValueError:
        lock.unlink()
        return
    if identity_of(pid) is not None and _works_in(pid, data):
        raise ServerError(f"PostgreSQL already runs on {data} as process {pid}; stop it first")
    lock.unlink()


def _works_in(pid: int, data: Path) -> bool:
    """Return whether the process is a PostgreSQL server whose working directory is this folder."""
    try:
        command = Path(f"/proc/{pid}/comm").read_text().strip()
        return command == "postgres" and Path(f"/proc/{pid}/cwd").readlink() == data
    except OSError:
        return False


def _initialise(
    data: Path, *, binaries: Path, way: UnprivilegedCommand, password: str | None
) -> None:
    fresh = data.with_name("data.partial")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    give_to(fresh, way)
    with tempfile.TemporaryDirectory(prefix="hami-initdb-") as scratch:
        authentication = ["--auth=trust"]
        if password is not None:
            secret = Path(scratch) / "password"
            secret.write_text(password)
            Path(scratch).chmod(0o755)
            secret.chmod(0o644 if way.is_other_user else 0o600)
            authentication = ["--auth=scram-sha-256", f"--pwfile={secret}"]
        layout = [
            "-D",
            str(fresh),
            "-U",
            SUPERUSER,
            "-E",
            "UTF8",
            "--no-locale",
            "--no-instructions",
        ]
        _run([*way.prefix, str(binaries / "initdb"), *layout, *authentication], cwd=fresh)
    single = [str(binaries / "postgres"), "--single", "-D", str(fresh), "template1"]
    _run([*way.prefix, *single], cwd=fresh, stdin=f"CREATE DATABASE {DATABASE}\n")
    fresh.rename(data)


def _run(argv: list[str], *, cwd: Path, stdin: str | None = None) -> None:
    try:
        done = subprocess.run(
            argv,
            cwd=cwd,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=_INITDB_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise ServerError(f"{argv[0]} did not end within {_INITDB_TIMEOUT_S:g} s") from exc
    # The single-user server exits with 0 whatever the statement did; it writes FATAL or ERROR.
    if done.returncode != 0 or "ERROR:" in done.stderr or "FATAL:" in done.stderr:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise ServerError(f"cannot make a PostgreSQL data folder in {cwd}: {' '.join(last)}")
