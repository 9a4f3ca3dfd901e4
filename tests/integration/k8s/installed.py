"""A cluster with our scheduler and ledger, as `k8s/base` runs them."""

import base64
import ssl
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml

from tests.integration.k8s.installation import Cluster, Scheduler


@dataclass(frozen=True, kw_only=True)
class Installed:
    """A cluster with its scheduler and ledger."""

    cluster: Cluster
    scheduler: Scheduler
    postgres_dsn: str
    folder: Path

    @property
    def ca(self) -> Path:
        return self.cluster.files / "ca" / "ca.crt"

    def get(self, url: str, path: str) -> httpx.Response:
        """Without a certificate."""
        context = ssl.create_default_context(cafile=str(self.ca))
        return httpx.get(f"{url}{path}", verify=context, timeout=30)


def kubernetes(installed: Installed) -> httpx.Client:
    config = yaml.safe_load(installed.cluster.kubeconfig.read_text())
    cluster = config["clusters"][0]["cluster"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    token = config["users"][0]["user"]["token"]
    return httpx.Client(
        base_url=cluster["server"],
        verify=ssl.create_default_context(cadata=authority),
        headers={"authorization": f"Bearer {token}"},
    )
