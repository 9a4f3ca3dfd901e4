"""Configure and check a Valkey server (compatible with Redis) on a loopback port."""

from functools import partial
from pathlib import Path

from hamilocal.servers.binaries import valkey_server
from hamilocal.supervisor.plan import NotReadyError, ServerPlan
from hamilocal.supervisor.ports import LOOPBACK, connect, exchange, free_port


def prepare(
    folder: Path,
    *,
    port: int | None = None,
    append_only: bool = False,
    password: str | None = None,
    name: str = "redis",
) -> ServerPlan:
    """Return how to run the server; keys persist only with `append_only`.

    Locks need no persistence: the ledger knows who holds a node.
    """
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    port = port or free_port()
    settings = {
        "bind": LOOPBACK,
        "port": str(port),
        "dir": str(folder),
        "save": "",
        "appendonly": "yes" if append_only else "no",
        "daemonize": "no",
        "logfile": "",
    }
    if password is not None:
        settings["requirepass"] = password
    options = [part for key, value in settings.items() for part in (f"--{key}", value)]
    secret = "" if password is None else f":{password}@"
    return ServerPlan(
        name=name,
        argv=(str(valkey_server()), *options),
        cwd=folder,
        log_path=folder / f"{name}.log",
        url=f"redis://{secret}{LOOPBACK}:{port}/0",
        port=port,
        probe=partial(redis_ready, port, folder=str(folder), password=password),
    )


def redis_ready(port: int, *, folder: str, password: str | None = None) -> None:
    """Check that the server of this folder answers commands (while it loads: LOADING)."""
    login = "" if password is None else f"AUTH {password}\r\n"
    with connect(port) as connection:
        reply = exchange(connection, f"{login}CONFIG GET dir\r\nPING\r\n".encode(), at_least=5)
        # An error answer begins with "-"; the last answer of a healthy server is the one to PING.
        while not reply.endswith(b"+PONG\r\n") and b"\r\n-" not in reply and reply[:1] != b"-":
            reply += exchange(connection, b"", at_least=1)
    if not reply.endswith(b"+PONG\r\n"):
        raise NotReadyError(f"Redis on port {port}: {reply.decode(errors='replace').strip()}")
    if folder.encode() not in reply.split(b"\r\n"):
        raise NotReadyError(f"port {port} belongs to another Redis server")
