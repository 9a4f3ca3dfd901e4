"""kubeconfig files for one server and one user with a token."""

from pathlib import Path

import yaml


def write_kubeconfig(path: Path, *, server: str, ca_file: Path, user: str, token: str) -> Path:
    """Write a kubeconfig with one context; returns `path`."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "hami",
                "cluster": {"server": server, "certificate-authority": str(ca_file.absolute())},
            }
        ],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": "hami", "context": {"cluster": "hami", "user": user}}],
        "current-context": "hami",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path
