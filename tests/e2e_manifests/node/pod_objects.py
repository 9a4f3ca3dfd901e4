"""Objects of the API server for the pods of hami-system."""

import base64

import httpx
from hamicommon.k8s.types import Json

NAMESPACE = "hami-system"


class Gone(Exception):
    """The pod was deleted while it was looked at."""


class Missing(Exception):
    """An object that a pod's spec names is missing; a kubelet tries again."""


class PodObjects:
    """Objects by their path or name, and tokens bound to a pod."""

    def __init__(self, api: httpx.Client) -> None:
        self.api = api

    def get(self, path: str) -> Json:
        answer = self.api.get(path)
        assert answer.status_code == 200, f"{path}: {answer.text}"
        return dict(answer.json())

    def object(self, kind: str, name: str) -> Json:
        """Raises: Missing."""
        path = f"/api/v1/namespaces/{NAMESPACE}/{kind}/{name}"
        if self.api.get(path).status_code == 404:
            raise Missing(path)
        return self.get(path)

    def exists(self, kind: str, name: str) -> bool:
        path = f"/api/v1/namespaces/{NAMESPACE}/{kind}/{name}"
        return self.api.get(path).status_code != 404

    def data(self, kind: str, name: str) -> dict[str, bytes]:
        held = self.object(kind, name).get("data") or {}
        if kind == "secrets":
            return {key: base64.b64decode(value) for key, value in held.items()}
        return {key: str(value).encode() for key, value in held.items()}

    def token(self, pod: Json, audience: str | None, seconds: int) -> str:
        account = pod["spec"].get("serviceAccountName", "default")
        reference = {
            "kind": "Pod",
            "apiVersion": "v1",
            "name": pod["metadata"]["name"],
            "uid": pod["metadata"]["uid"],
        }
        answer = self.api.post(
            f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token",
            json={
                "spec": {
                    "audiences": [audience] if audience else None,
                    "expirationSeconds": seconds,
                    "boundObjectRef": reference,
                }
            },
        )
        if answer.status_code == 404:
            raise Gone
        assert answer.status_code == 201, answer.text
        return str(answer.json()["status"]["token"])
