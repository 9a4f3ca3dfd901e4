"""Why a service or Postgres could not be asked, and what to set. Pure but for proxies.

TLS shows little of it: a server that refuses what a client shows closes the connection after the
handshake (TLS 1.3), and asyncio's servers do so without the alert that would name the reason.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from hamictl.scheduler_address import PAGE, SchedulerAddress

# https://docs.openssl.org/master/man1/openssl-verification-options/ ("Diagnostics").
_EXPIRED, _NOT_YET = 10, 9
_OTHER_NAME, _OTHER_ADDRESS = 62, 64
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_CONNECTION_LOST = "08"
"""Class of SQLSTATE (PostgreSQL, "Error Codes")."""


def sentence(exc: httpx.HTTPError, address: SchedulerAddress) -> str:
    """What went wrong on the way to the scheduler."""
    who = address.service.removeprefix("hami-")
    return f"{who} {address.url} does not answer: {_why(exc, address)}{_proxy(address)}"


def not_a_scheduler(answer: httpx.Response, address: SchedulerAddress) -> str:
    """For an answer that hami-scheduler does not give."""
    kind = answer.headers.get("content-type", "no content type").partition(";")[0]
    return (
        f"{address.url} answers {answer.status_code} with {kind}, not as {address.service} does: "
        f"is another server there, or a proxy in between?{_proxy(address)}"
    )


def _why(exc: httpx.HTTPError, address: SchedulerAddress) -> str:
    for cause in _causes(exc):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return _untrusted(cause, address)
        if isinstance(cause, ssl.SSLError):
            return _tls(cause, address)
    if isinstance(exc, httpx.ProxyError):
        return f"the proxy refuses: {exc}"
    if isinstance(exc, httpx.TimeoutException):
        return f"nothing came in time: it hangs, or was stopped{_supervised(address)}"
    if isinstance(exc, httpx.ConnectError):
        return f"{exc}{_unreachable(address)}"
    if isinstance(exc, httpx.RemoteProtocolError | httpx.ReadError | httpx.WriteError):
        return _closed(address)
    return str(exc) or type(exc).__name__


def _causes(exc: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = exc
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__


def _untrusted(exc: ssl.SSLCertVerificationError, address: SchedulerAddress) -> str:
    code = exc.verify_code
    if code in (_OTHER_NAME, _OTHER_ADDRESS):
        return (
            f"its certificate is not for {address.host}: a forwarded port is localhost, "
            f"and in the cluster it is {address.service}.hami-system.svc"
        )
    if code in (_EXPIRED, _NOT_YET):
        return f"its certificate is not valid now: {exc.verify_message}"
    if address.ca_file is None:
        return (
            "its certificate is of an authority that this machine does not trust: set "
            f"{address.prefix}_CA_FILE to what ConfigMap hami-ca holds ({PAGE})"
        )
    return (
        f"its certificate is not of the authority in {address.prefix}_CA_FILE={address.ca_file} "
        f"({exc.verify_message})"
    )


def _tls(exc: ssl.SSLError, address: SchedulerAddress) -> str:
    text = f"{exc.reason or exc}"
    if "ALERT" in text:
        return _closed(address)
    if isinstance(exc, ssl.SSLEOFError | ssl.SSLZeroReturnError) or "EOF" in text:
        return _closed_at_once(address)
    return "TLS is not spoken there: another port is wanted, or http://"


def _closed(address: SchedulerAddress) -> str:
    again = "; or it was stopped just now"
    if not address.secure:
        return "it closed the connection: if TLS is spoken there, https:// is wanted" + again
    return f"it closed the connection: the operators' port is wanted ({PAGE}){again}"


def _closed_at_once(address: SchedulerAddress) -> str:
    """`kubectl port-forward` takes connections for a pod that is gone, and closes them."""
    if address.host in _LOOPBACK:
        return (
            "the connection was closed before TLS began: `kubectl port-forward` stays with the pod "
            "that it found first, start it again if that pod is gone; or another port is wanted"
        )
    return (
        "the connection was closed before TLS began: it was stopped just now, "
        "or another port is wanted"
    )


def closed_forward(dsn: str, exc: BaseException | None) -> str:
    """Behind a sentence about a Postgres that `exc` keeps us from, or that went away: what to do
    where its port is forwarded; empty for any other, and for one that answered with a refusal."""
    state = getattr(exc, "sqlstate", None)
    refused = isinstance(exc, ssl.SSLError) or (state and not state.startswith(_CONNECTION_LOST))
    places = urlsplit(dsn).netloc.rpartition("@")[2].split(",")
    if refused or not all(place.strip("[").startswith(_LOOPBACK) for place in places):
        return ""
    return (
        "; does `kubectl port-forward` still run? It may end with the first connection that "
        f"Postgres closes: start it again for each command, or in a loop ({PAGE})"
    )


def _supervised(address: SchedulerAddress) -> str:
    """Behind a sentence about a service of the local system: where its log is."""
    if not address.log:
        return ""
    times = {0: "", 1: "; it was restarted once"}.get(
        address.restarts, f"; it was restarted {address.restarts} times"
    )
    return f"{times}; its log is {address.log}"


def _unreachable(address: SchedulerAddress) -> str:
    if address.log:
        return f"; the local system's supervisor starts it again{_supervised(address)}"
    if address.host in _LOOPBACK:
        return "; does `kubectl port-forward` still run?"
    if address.host.endswith((".svc", ".cluster.local")):
        return f"; that name is known in the cluster alone, elsewhere forward the port ({PAGE})"
    return ""


def _proxy(address: SchedulerAddress) -> str:
    """Names the proxy of the environment, which nobody thinks of."""
    proxy = getproxies().get("https" if address.secure else "http")
    if not proxy or proxy_bypass(address.host):
        return ""
    name = "HTTPS_PROXY" if address.secure else "HTTP_PROXY"
    return f" (asked through {name}; NO_PROXY={address.host} goes around it)"
