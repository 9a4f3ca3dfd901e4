"""etcd on loopback ports, for a real kube-apiserver in tests."""

from functools import partial
from pathlib import Path

from hamilocal.supervisor.plan import ServerPlan
from hamilocal.supervisor.ports import LOOPBACK, free_port
from hamilocal.supervisor.probes import http_ready


def prepare(folder: Path, *, binary: Path, name: str = "etcd") -> ServerPlan:
    """How to run a single member whose data are in `folder`, without fsync: it is for tests."""
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    client, peer = free_port(), free_port()
    url, peer_url = f"http://{LOOPBACK}:{client}", f"http://{LOOPBACK}:{peer}"
    options = {
        "name": name,
        "data-dir": str(folder / "data"),
        "listen-client-urls": url,
        "advertise-client-urls": url,
        "listen-peer-urls": peer_url,
        "initial-advertise-peer-urls": peer_url,
        "initial-cluster": f"{name}={peer_url}",
        "unsafe-no-fsync": "true",
        "logger": "zap",
        "log-level": "warn",
    }
    return ServerPlan(
        name=name,
        argv=(str(binary), *(f"--{key}={value}" for key, value in options.items())),
        cwd=folder,
        log_path=folder / f"{name}.log",
        url=url,
        port=client,
        probe=partial(http_ready, f"{url}/health"),
    )
