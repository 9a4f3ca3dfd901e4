"""Ports of a local system: free ones, and the same ones again on the next start if still free."""

from __future__ import annotations

from pathlib import Path

import orjson

from hamilocal.supervisor.ports import free_port, is_free


def stable_ports(names: tuple[str, ...], path: Path) -> dict[str, int]:
    """A port per name; `path` remembers them, so that a kubeconfig stays valid over restarts."""
    try:
        known: dict[str, int] = orjson.loads(path.read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        known = {}
    ports: dict[str, int] = {}
    for name in names:
        port = known.get(name, 0)
        while not port or port in ports.values() or not is_free(port):
            port = free_port()
        ports[name] = port
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(orjson.dumps(known | ports))
    partial.replace(path)
    return ports
