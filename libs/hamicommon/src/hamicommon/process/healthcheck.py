"""Run `python -m hamicommon.process.healthcheck HOST:PORT`: check that the service is ready.

HEALTHCHECK of the images, which have no curl; ends with 0 or, with the reason in one line, with 1.
Kubernetes asks the same path itself. Imports nothing but the standard library: it is started again
every few seconds.
"""

from __future__ import annotations

import http.client
import sys

PATH = "/readyz"
TIMEOUT_S = 4.0
_EVERYWHERE = {"", "0.0.0.0", "::"}
_REASON_BYTES = 200


def problem(bind: str) -> str | None:
    """Return why the service at `bind` (host:port) is not ready, or None if it is."""
    host, colon, port = bind.rpartition(":")
    if not colon or not port.isdecimal():
        return f"{bind!r} is not host:port"
    host = host.strip("[]")
    connection = http.client.HTTPConnection(
        "127.0.0.1" if host in _EVERYWHERE else host, int(port), timeout=TIMEOUT_S
    )
    try:
        connection.request("GET", PATH)
        answer = connection.getresponse()
        if answer.status == http.HTTPStatus.OK:
            return None
        reason = answer.read(_REASON_BYTES).decode(errors="replace").strip()
        return f"{PATH} answers {answer.status}: {reason}"
    except (OSError, http.client.HTTPException) as exc:
        return f"{bind} does not answer: {exc or type(exc).__name__}"
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(problem(sys.argv[1] if len(sys.argv) == 2 else ""))
