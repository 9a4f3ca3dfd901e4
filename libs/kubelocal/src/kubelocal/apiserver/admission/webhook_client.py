"""Calls a webhook over HTTPS: its address, the trust in its certificate, the time-out.

A service address is resolved by the configured map, because no service network is emulated; the
certificate is still checked against `<service>.<namespace>.svc`, as the real server does.
"""

from __future__ import annotations

import base64
import binascii
import ssl
from collections.abc import Mapping

import httpx
from hamicommon.errors import Unavailable
from hamicommon.k8s.types import Json

# More than the answers of a webhook ever need; bounds the sockets of a burst of pods.
_CONNECTIONS = httpx.Limits(max_connections=64, max_keepalive_connections=16)


class WebhookClient:
    """`services` maps `namespace/name` or `namespace/name:port` to `host:port`."""

    def __init__(self, services: Mapping[str, str]) -> None:
        self._services = dict(services)
        self._clients: dict[str, httpx.AsyncClient] = {}

    async def post(self, config: Json, body: bytes, timeout_s: float) -> bytes:
        """Send a review to the webhook of a `clientConfig`; the bytes of the answer.

        Raises: Unavailable where there is no answer with status 200 in time.
        """
        shown, address, host = self._address(config)
        client = self._client(config.get("caBundle", ""))
        extensions = {"sni_hostname": host.partition(":")[0]} if host else {}
        headers = {"content-type": "application/json", "accept": "application/json"}
        if host:
            headers["host"] = host
        try:
            answer = await client.post(
                f"{address}?timeout={timeout_s:g}s",
                content=body,
                headers=headers,
                extensions=extensions,
                timeout=timeout_s,
            )
        except httpx.TimeoutException as error:
            raise Unavailable(f'Post "{shown}": context deadline exceeded') from error
        except httpx.HTTPError as error:
            raise Unavailable(f'Post "{shown}": {error}') from error
        if answer.status_code != 200:
            text = answer.text[:200]
            raise Unavailable(f"the server answered {answer.status_code}: {text}")
        return answer.content

    async def close(self) -> None:
        for client in self._clients.values():
            await client.aclose()

    def _address(self, config: Json) -> tuple[str, str, str]:
        """(address as people know it, address to dial, name to check or an empty string)."""
        if url := config.get("url"):
            return url, url, ""
        service = config.get("service", {})
        name = f"{service.get('namespace', '')}/{service.get('name', '')}"
        port = service.get("port", 443)
        path = service.get("path", "").lstrip("/")
        host = f"{service.get('name', '')}.{service.get('namespace', '')}.svc"
        shown = f"https://{host}:{port}/{path}"
        dial = self._services.get(f"{name}:{port}") or self._services.get(name)
        if dial is None:
            raise Unavailable(f'Post "{shown}": service "{service.get("name", "")}" not found')
        return shown, f"https://{dial}/{path}", f"{host}:{port}"

    def _client(self, bundle: str) -> httpx.AsyncClient:
        client = self._clients.get(bundle)
        if client is None:
            client = httpx.AsyncClient(verify=_trust(bundle), limits=_CONNECTIONS, trust_env=False)
            self._clients[bundle] = client
        return client


def _trust(bundle: str) -> ssl.SSLContext:
    if not bundle:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cadata=base64.b64decode(bundle).decode())
    except (ssl.SSLError, binascii.Error, UnicodeDecodeError) as error:
        raise Unavailable(f"caBundle holds no certificate in PEM form: {error}") from error
