"""The webhook's server with nothing to decide, for `make bench-webhook`.

The same server on the same event loop (`hamicommon.process.http_server.run`), the same application
with the
same kind of route, the same TLS; it reads the body of `POST /bare` to its end and answers two
bytes. A test compares both.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request, Response
from hami_webhook.routes import bare_app
from hamicommon.process.http_server import run, serving
from hamicommon.process.serving_certificate import ServingCertificate


async def bare(request: Request) -> Response:
    """Reads and forgets."""
    await request.body()
    return Response(b"ok")


def create_app() -> FastAPI:
    """The webhook's application with another route."""
    app = bare_app()
    app.add_route("/bare", bare, methods=["POST"])
    return app


@asynccontextmanager
async def opened(bind: str, folder: Path) -> AsyncIterator[None]:
    """Serves while the block runs."""
    pair = ServingCertificate(folder / "tls.crt", folder / "tls.key")
    async with serving(create_app(), bind, ssl_context=pair.context):
        yield


if __name__ == "__main__":
    run("bare-endpoint", opened(sys.argv[1], Path(sys.argv[2])))
