"""The Job hami-bootstrap's program on a real API server, with only the rights of its account."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from hamilocal.servers.certificates import write_kubeconfig

from tests.control_plane import ControlPlane
from tests.waiting import PATIENCE_S


def bootstrap(plane: ControlPlane, folder: Path, sh: Callable[..., str]) -> str:
    """Run it once, as after `kubectl apply`; return its log. `sh` runs as an administrator."""
    system = ("--namespace", "hami-system")
    token = sh("kubectl", "create", "token", "hami-bootstrap", "--duration", "1h", *system)
    kubeconfig = write_kubeconfig(
        folder / "bootstrap.kubeconfig",
        server=plane.url,
        authority=plane.server.ca_file.read_bytes(),
        token=token.strip(),
    )
    done = subprocess.run(
        [sys.executable, "-m", "hami_webhook.credentials"],
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr
