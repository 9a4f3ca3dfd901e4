"""Credentials for the API server, from a kubeconfig or from the pod's service account.

Read here, and not by `kubernetes.aio`, because that imports every typed model: a second of CPU at
start and some 30 MiB (ADR 10), which an agent on every node need not pay. What needs a credential
plugin is left to it (`plugin_credentials`); both are `Credentials` to `client.py`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import yaml

from hamicommon.errors import InvalidRequest
from hamicommon.settings import ServiceAddress

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# The kubelet renews a token after four fifths of its life, which is ten minutes at least.
TOKEN_AGE_S = 60.0
_CLUSTER_KEYS = {
    "server",
    "certificate-authority",
    "certificate-authority-data",
    "insecure-skip-tls-verify",
}
_USER_KEYS = {
    "client-certificate",
    "client-certificate-data",
    "client-key",
    "client-key-data",
    "token",
    "tokenFile",
}


class Credentials(Protocol):
    """An API server's address and TLS context, and the headers that authenticate us."""

    @property
    def server_url(self) -> str:
        """The server's base address."""

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """TLS context with the server's CA and the client's certificate; None for HTTP."""

    async def authorize(self, headers: dict[str, str]) -> None:
        """Add authentication to a request's headers. Raises: OSError if the token can't be read."""


@dataclass(slots=True, kw_only=True)
class Plain:
    """Credentials by a client certificate or a token, whose file may change."""

    server_url: str
    ssl_context: ssl.SSLContext | None
    token: str = ""
    token_file: Path | None = None
    _read_at_s: float | None = None

    async def authorize(self, headers: dict[str, str]) -> None:
        """Add the token, read from its file again when it may have changed."""
        if self.token_file is not None:
            now_s = time.monotonic()
            if self._read_at_s is None or now_s - self._read_at_s > TOKEN_AGE_S:
                self.token = (await asyncio.to_thread(self.token_file.read_text)).strip()
                self._read_at_s = now_s
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"


@asynccontextmanager
async def credentials_of(kubeconfig: Path | None) -> AsyncIterator[Credentials]:
    """Yield credentials of a kubeconfig's context; None: of the pod's service account.

    Raises: InvalidRequest when there is no usable configuration.
    """
    plain = await asyncio.to_thread(_plain, kubeconfig)
    if plain is not None:
        yield plain
        return
    assert kubeconfig is not None  # a service account is always plain
    async with plugin_credentials(kubeconfig) as found:
        yield found


def _plain(kubeconfig: Path | None) -> Plain | None:
    source = "the pod's service account" if kubeconfig is None else f"KUBECONFIG={kubeconfig}"
    try:
        return _service_account() if kubeconfig is None else _of_file(kubeconfig)
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as exc:
        what = f"{exc} is missing" if isinstance(exc, KeyError) else str(exc)
        raise InvalidRequest(f"no usable Kubernetes configuration in {source}: {what}") from exc


def _service_account() -> Plain:
    address = ServiceAddress()
    if not address.host or not address.port:
        raise ValueError("KUBERNETES_SERVICE_HOST and _PORT are not set")
    host = f"[{address.host}]" if ":" in address.host else address.host
    return Plain(
        server_url=f"https://{host}:{address.port}",
        ssl_context=ssl.create_default_context(cafile=str(SERVICE_ACCOUNT / "ca.crt")),
        token_file=SERVICE_ACCOUNT / "token",
    )


def _of_file(kubeconfig: Path) -> Plain | None:
    """Return the credentials of a kubeconfig; None if it needs a plugin. Raises: see `_plain`."""
    document = yaml.safe_load(kubeconfig.read_bytes())
    context = _find_entry(document, "contexts", document["current-context"])["context"]
    cluster = _find_entry(document, "clusters", context["cluster"])["cluster"]
    user = _find_entry(document, "users", context["user"]).get("user") or {}
    if not (cluster.keys() <= _CLUSTER_KEYS and user.keys() <= _USER_KEYS):
        return None
    token_file = user.get("tokenFile")
    server_url = str(cluster["server"]).rstrip("/")
    return Plain(
        server_url=server_url,
        ssl_context=_tls(cluster, user, kubeconfig.parent) if server_url[:6] == "https:" else None,
        token=user.get("token") or "",
        token_file=None if token_file is None else kubeconfig.parent / token_file,
    )


def _find_entry(document: dict[str, Any], what: str, name: str) -> dict[str, Any]:
    found = next((each for each in document.get(what) or [] if each["name"] == name), None)
    if found is None:
        raise ValueError(f"{what}: no entry is named {name!r}")
    return cast(dict[str, Any], found)


def _tls(cluster: dict[str, Any], user: dict[str, Any], folder: Path) -> ssl.SSLContext:
    authority = _content(cluster, "certificate-authority", folder)
    context = ssl.create_default_context(cadata=None if authority is None else authority.decode())
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate = _content(user, "client-certificate", folder)
    key = _content(user, "client-key", folder)
    if certificate is not None and key is not None:
        _as_file(certificate + b"\n" + key, context.load_cert_chain)
    return context


def _content(entry: dict[str, Any], key: str, folder: Path) -> bytes | None:
    """Return the value of `<key>-data`, otherwise the content of the file that `<key>` names."""
    data, path = entry.get(f"{key}-data"), entry.get(key)
    if data:
        try:
            return base64.b64decode(data, validate=True)
        except binascii.Error as exc:
            raise ValueError(f"{key}-data: {exc}") from exc
    return (folder / path).read_bytes() if path else None


def _as_file(content: bytes, load: Callable[[str], None]) -> None:
    """Pass the content to `load` as a file in memory: OpenSSL reads files only."""
    descriptor = os.memfd_create("credentials")
    try:
        os.write(descriptor, content)
        load(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


@asynccontextmanager
async def plugin_credentials(kubeconfig: Path) -> AsyncIterator[Credentials]:
    """Yield credentials through `kubernetes.aio`, which runs plugins. Raises: InvalidRequest."""
    try:
        from kubernetes.aio import client as aio_client
        from kubernetes.aio import config as aio_config
        from kubernetes.aio.config.config_exception import ConfigException
    except ImportError as exc:  # images leave out its 126 MB: a pod has its service account
        raise InvalidRequest(
            f"KUBECONFIG={kubeconfig} needs a credential plugin, for which the Python package"
            " kubernetes is missing: install hamicommon[kubeconfig-plugins], or give the user a"
            " token or a client certificate"
        ) from exc

    configuration = aio_client.Configuration()
    try:
        await aio_config.load_kube_config(  # type: ignore[no-untyped-call]  # it has no types
            config_file=str(kubeconfig), client_configuration=configuration
        )
    except (ConfigException, OSError) as exc:
        source = f"KUBECONFIG={kubeconfig}"
        raise InvalidRequest(f"no usable Kubernetes configuration in {source}: {exc}") from exc
    async with aio_client.ApiClient(configuration) as api:
        yield _PluginCredentials(api)


class _PluginCredentials:
    """Credentials taken from an `ApiClient` of `kubernetes.aio`."""

    def __init__(self, api: Any) -> None:
        self._api = api

    @property
    def server_url(self) -> str:
        return cast(str, self._api.configuration.host)

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        return cast(ssl.SSLContext, self._api.rest_client.ssl_context)

    async def authorize(self, headers: dict[str, str]) -> None:
        """Run the plugin if its token has expired."""
        await self._api.update_params_for_auth(headers, [], ["BearerToken"], "", "GET", None)
