"""Client for the HTTP APIs of the scheduler and the metrics service.

The service's address and our credentials are checked before a request is sent; a failure names the
service and the setting to change. TLS shows little of a failure: a server that refuses the client's
certificate closes the connection after the handshake (TLS 1.3), and asyncio's servers do so without
the alert that would name the reason.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx
from hamicommon.errors import Forbidden, InvalidRequest, NotFound, Unavailable

PAGE = "docs/hamictl-on-a-cluster.md"
_TOKEN = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerAddress:
    """Address of a service, as in the settings of these names; empty and None: not given."""

    url: str
    ca_file: Path | None = None
    token: str = ""
    token_file: Path | None = None
    prefix: str = "HAMI_SCHEDULER"
    """Prefix of the settings' names."""
    service: str = "hami-scheduler"
    log: str = ""
    """Log file of a service of the local system."""
    restarts: int = 0
    """Number of times that the local system's supervisor restarted the service."""

    @property
    def host(self) -> str:
        """Return the host of the URL. Raises: InvalidRequest when it is none."""
        try:
            parts = urlsplit(self.url)
            if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
                return parts.hostname
        except ValueError:
            pass
        raise InvalidRequest(f"{self.prefix}_URL={self.url}: use http(s)://host:port")

    @property
    def secure(self) -> bool:
        """Whether the URL is https."""
        return self.url.lower().startswith("https:")

    def headers(self) -> dict[str, str]:
        """Return the headers of each request. Raises: InvalidRequest if the token is unusable."""
        source, token = f"{self.prefix}_TOKEN", self.token
        if self.token_file is not None:
            if token:
                raise InvalidRequest(f"{self.prefix}_TOKEN and _TOKEN_FILE are both set: unset one")
            source = f"{self.prefix}_TOKEN_FILE={self.token_file}"
            token = _read(self.token_file, source)
            if not token.strip():
                raise InvalidRequest(f"{source}: the file is empty")
        token = token.strip()
        if not token:
            return {}
        if not _TOKEN.fullmatch(token):
            raise InvalidRequest(
                f"{source} is not a token: it has spaces or characters outside ASCII"
            )
        if not self.secure:
            raise InvalidRequest(
                f"{self.prefix}_URL={self.url}: a token is sent over https:// only"
            )
        return {"Authorization": f"Bearer {token}"}

    def ssl_context(self) -> ssl.SSLContext | bool:
        """Return how to verify the server; False for plain HTTP.

        Raises: InvalidRequest naming the setting and the problem of its file.
        """
        if not self.secure:
            return False
        source = f"{self.prefix}_CA_FILE={self.ca_file}"
        authorities = None if self.ca_file is None else _read(self.ca_file, source)
        try:
            context = ssl.create_default_context(cadata=authorities)
        except (ssl.SSLError, ValueError) as exc:
            raise InvalidRequest(f"{source} is not a certificate in PEM form") from exc
        return context


def metrics_address(
    url: str,
    *,
    ca_file: Path | None = None,
    token: str = "",
    token_file: Path | None = None,
) -> SchedulerAddress:
    """Return the address of hami-metrics.

    The same rules apply: a token only over TLS, an authority in a file.
    """
    return SchedulerAddress(
        url=url,
        ca_file=ca_file,
        token=token,
        token_file=token_file,
        prefix="HAMI_METRICS",
        service="hami-metrics",
    )


def _read(path: Path, source: str) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError as exc:
        raise InvalidRequest(f"{source}: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise InvalidRequest(f"{source}: the file is not text") from exc


# https://docs.openssl.org/master/man1/openssl-verification-options/ ("Diagnostics").
_EXPIRED, _NOT_YET = 10, 9
_OTHER_NAME, _OTHER_ADDRESS = 62, 64
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_CONNECTION_LOST = "08"
"""SQLSTATE class of lost connections (PostgreSQL, "Error Codes")."""


def sentence(exc: httpx.HTTPError, address: SchedulerAddress) -> str:
    """Explain in one sentence why the scheduler can't be reached."""
    who = address.service.removeprefix("hami-")
    return f"{who} {address.url} is unavailable: {_why(exc, address)}{_proxy(address)}"


def not_a_scheduler(answer: httpx.Response, address: SchedulerAddress) -> str:
    """Return the error for an answer that hami-scheduler does not give."""
    kind = answer.headers.get("content-type", "no content type").partition(";")[0]
    return (
        f"{address.url} answers {answer.status_code} with {kind}, unlike {address.service}: "
        f"check the address, and for a proxy in between{_proxy(address)}"
    )


def _why(exc: httpx.HTTPError, address: SchedulerAddress) -> str:
    for cause in _causes(exc):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _untrusted_reason(cause, address)
        if isinstance(cause, ssl.SSLError):
            return _tls(cause, address)
    if isinstance(exc, httpx.ProxyError):
        return f"the proxy refuses: {exc}"
    if isinstance(exc, httpx.TimeoutException):
        return f"no answer in time: it hangs or was stopped{_log_hint(address)}"
    if isinstance(exc, httpx.ConnectError):
        return f"{exc}{_unreachable(address)}"
    if isinstance(exc, httpx.RemoteProtocolError | httpx.ReadError | httpx.WriteError):
        return _closed_reason(address)
    return str(exc) or type(exc).__name__


def _causes(exc: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = exc
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__


def _untrusted_reason(exc: ssl.SSLCertVerificationError, address: SchedulerAddress) -> str:
    code = exc.verify_code
    if code in (_OTHER_NAME, _OTHER_ADDRESS):
        return (
            f"its certificate is not for {address.host}: use localhost for a forwarded port, "
            f"and {address.service}.hami-system.svc in the cluster"
        )
    if code in (_EXPIRED, _NOT_YET):
        return f"its certificate is not valid now: {exc.verify_message}"
    if address.ca_file is None:
        return (
            "this machine does not trust the authority of its certificate: set "
            f"{address.prefix}_CA_FILE to the content of ConfigMap hami-ca ({PAGE})"
        )
    return (
        f"its certificate is not of the authority in {address.prefix}_CA_FILE={address.ca_file} "
        f"({exc.verify_message})"
    )


def _tls(exc: ssl.SSLError, address: SchedulerAddress) -> str:
    text = f"{exc.reason or exc}"
    if "ALERT" in text:
        return _closed_reason(address)
    if isinstance(exc, ssl.SSLEOFError | ssl.SSLZeroReturnError) or "EOF" in text:
        return _closed_at_once(address)
    return "the port does not use TLS: use another port, or http://"


def _closed_reason(address: SchedulerAddress) -> str:
    again = "; or it has just been stopped"
    if not address.secure:
        return "it closed the connection: use https:// if the port has TLS" + again
    return f"it closed the connection: use the operators' port ({PAGE}){again}"


def _closed_at_once(address: SchedulerAddress) -> str:
    """Explain a connection that closed before TLS, as a port-forward to a deleted pod does."""
    if address.host in _LOOPBACK:
        return (
            "the connection was closed before TLS began: `kubectl port-forward` keeps its first "
            "pod, start it again if that pod is gone; or use another port"
        )
    return (
        "the connection was closed before TLS began: it has just been stopped, or use another port"
    )


def closed_forward(dsn: str, exc: BaseException | None) -> str:
    """Return advice about an unavailable Postgres behind a port-forward.

    Empty for any other Postgres, and for one that answered with a refusal.
    """
    state = getattr(exc, "sqlstate", None)
    refused = isinstance(exc, ssl.SSLError) or (state and not state.startswith(_CONNECTION_LOST))
    places = urlsplit(dsn).netloc.rpartition("@")[2].split(",")
    if refused or not all(place.strip("[").startswith(_LOOPBACK) for place in places):
        return ""
    return (
        "; check that `kubectl port-forward` still runs: it may end with the first connection that "
        f"Postgres closes, so start it for each command, or in a loop ({PAGE})"
    )


def _log_hint(address: SchedulerAddress) -> str:
    """Return where the log of a local system's service is, as the end of a message."""
    if not address.log:
        return ""
    times = {0: "", 1: "; it was restarted once"}.get(
        address.restarts, f"; it was restarted {address.restarts} times"
    )
    return f"{times}; its log is {address.log}"


def _unreachable(address: SchedulerAddress) -> str:
    if address.log:
        return f"; the local system's supervisor restarts it{_log_hint(address)}"
    if address.host in _LOOPBACK:
        return "; check that `kubectl port-forward` still runs"
    if address.host.endswith((".svc", ".cluster.local")):
        return f"; that name is known in the cluster only, elsewhere forward the port ({PAGE})"
    return ""


def _proxy(address: SchedulerAddress) -> str:
    """Return the environment's proxy, as the end of a message."""
    proxy = getproxies().get("https" if address.secure else "http")
    if not proxy or proxy_bypass(address.host):
        return ""
    name = "HTTPS_PROXY" if address.secure else "HTTP_PROXY"
    return f" (called through {name}; NO_PROXY={address.host} bypasses it)"


Row = dict[str, Any]
TIMEOUT_S = 10.0
FIRST_WAIT_S = 1.5
"""Time without an answer after which the service is probed."""
PROBE_TIMEOUT_S = 2.0
PROBE_PATH = "/healthz"
"""Path of the probe, to which any answer shows that the service lives."""


class SchedulerClient:
    """Client of one scheduler replica; all replicas read the same ledger."""

    def __init__(self, address: SchedulerAddress) -> None:
        self._address = address
        # FastAPI's own form; the scheduler answers errors in its own.
        self._is_metrics = address.service == "hami-metrics"

    async def get(self, path: str, **query: str) -> Any:
        """Return the decoded JSON of the answer.

        Raises: NotFound, InvalidRequest, Forbidden, Unavailable.
        """
        return await self._ask("GET", path, params=query)

    async def text(self, path: str, **query: str) -> str:
        """Return the answer's text unchanged, for files.

        Raises: NotFound, InvalidRequest, Forbidden, Unavailable.
        """
        answer = await self._send("GET", path, params=query)
        if not answer.is_success:
            self._decoded_or_error(answer)
        return answer.text

    async def post(self, path: str, body: object = None, *, timeout_s: float = TIMEOUT_S) -> Any:
        """Send a command; return the decoded JSON of the answer.

        Raises: NotFound, InvalidRequest, Forbidden, Unavailable.
        """
        return await self._ask("POST", path, json=body, timeout=timeout_s)

    async def _ask(self, method: str, path: str, **how: Any) -> Any:
        return self._decoded_or_error(await self._send(method, path, **how))

    async def _send(self, method: str, path: str, **how: Any) -> httpx.Response:
        address = self._address
        host, headers, verify = address.host, address.headers(), address.ssl_context()
        try:
            async with httpx.AsyncClient(
                timeout=TIMEOUT_S, verify=verify, headers=headers
            ) as client:
                return await self._answer_while_alive(
                    client, client.request(method, f"{address.url}{path}", **how)
                )
        except httpx.HTTPError as exc:
            raise Unavailable(sentence(exc, address)) from exc
        except (httpx.InvalidURL, ValueError) as exc:
            raise InvalidRequest(f"{address.prefix}_URL={address.url} ({host}): {exc}") from exc

    async def _answer_while_alive(
        self, client: httpx.AsyncClient, request: Coroutine[Any, Any, httpx.Response]
    ) -> httpx.Response:
        """Return the answer, waiting as long as probes show that the service lives.

        A service that hangs accepts connections and never answers. Raises: httpx.HTTPError.
        """
        asked = asyncio.ensure_future(request)
        try:
            await asyncio.wait([asked], timeout=FIRST_WAIT_S)
            if not asked.done():
                await client.get(f"{self._address.url}{PROBE_PATH}", timeout=PROBE_TIMEOUT_S)
            return await asked
        finally:
            if not asked.done():
                asked.cancel()
                await asyncio.wait([asked])

    def _decoded_or_error(self, answer: httpx.Response) -> Any:
        body = self._decode(answer)
        if answer.is_success:
            return body
        message = str(body.get("error") or body.get("detail") or body)
        if answer.status_code == 404:
            raise NotFound(message)
        if answer.status_code in (401, 403):
            raise Forbidden(message)
        if answer.status_code < 500:
            raise InvalidRequest(message)
        raise Unavailable(message)

    def _decode(self, answer: httpx.Response) -> dict[str, Any]:
        try:
            body = answer.json()
        except ValueError:
            body = None
        known = isinstance(body, dict) and (
            "error" in body or "detail" in body if self._is_metrics else "error" in body
        )
        ours = isinstance(body, dict) and (
            answer.is_success or known or _is_parameter_error(answer)
        )
        if not ours:
            raise Unavailable(not_a_scheduler(answer, self._address))
        return cast(dict[str, Any], body)

    async def rows(self, path: str, **query: str) -> list[Row]:
        """Return the rows of a list answer `{"items": [...]}`."""
        return self._rows(path, await self.get(path, **query))

    async def rows_if_known(self, path: str, **query: str) -> list[Row] | None:
        """Return the rows like `rows`; None if the service is older than this path."""
        answer = await self._send("GET", path, params=query)
        # FastAPI's own answer, which no route of ours gives.
        if answer.status_code == 404 and answer.text == '{"detail":"Not Found"}':
            return None
        return self._rows(path, self._decoded_or_error(answer))

    def _rows(self, path: str, body: Any) -> list[Row]:
        if not isinstance(body.get("items"), list):
            raise Unavailable(
                f"{self._address.url}{path} does not answer as {self._address.service}: check the "
                "address"
            )
        return cast(list[Row], body["items"])


def _is_parameter_error(answer: httpx.Response) -> bool:
    """Return whether FastAPI refused a parameter."""
    return answer.status_code == 422
