"""ResourceClaims at the API server: read, and allocated where the ledger does so."""

from __future__ import annotations

from hamicommon.dra.claims import claim_path
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.types import Json


class KubernetesClaimApi:
    """Ports ClaimApi and ClaimWriter."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api

    async def get(self, namespace: str, name: str) -> Json:
        """See the port."""
        return await self._api.get(claim_path(namespace, name))

    async def set_status(self, claim: Json, status: Json) -> Json:
        """See the port."""
        body = {"metadata": _guard(claim), "status": status}
        return await self._api.patch(f"{_path(claim)}/status", body)


def _path(claim: Json) -> str:
    return claim_path(claim["metadata"]["namespace"], claim["metadata"]["name"])


def _guard(claim: Json) -> Json:
    """The server refuses (409) a claim that is another one, or that has changed."""
    return {key: claim["metadata"][key] for key in ("uid", "resourceVersion")}
