"""kubeconfigs for one server and one user with a token."""

import base64
from pathlib import Path
from typing import Any

import yaml

from hamilocal.servers.certificates import write_file


def kubeconfig(*, server: str, authority: bytes, token: str, user: str = "admin") -> dict[str, Any]:
    """One cluster, one user, one context named `hami`; `authority` is PEM."""
    data = base64.b64encode(authority).decode()
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "hami", "cluster": {"server": server, "certificate-authority-data": data}}
        ],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "hami", "context": {"cluster": "hami", "user": user}}],
        "current-context": "hami",
    }


def write_kubeconfig(
    path: Path, *, server: str, authority: bytes, token: str, user: str = "admin"
) -> Path:
    """Write such a kubeconfig for its owner alone; returns `path`."""
    config = kubeconfig(server=server, authority=authority, token=token, user=user)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, yaml.safe_dump(config, sort_keys=False).encode(), private=True)
    return path
