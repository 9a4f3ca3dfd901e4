"""What the webhook's server does when it has nothing to decide: the measure of bench/webhook.py.

The same server (`hamicommon.serving`), the same application with the same kind of route, the same
TLS; it reads the body of `POST /bare` to its end and answers two bytes. A test compares both.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from fastapi import FastAPI, Request, Response
from hami_webhook.certificates import ServingCertificate
from hami_webhook.instruments import Instruments
from hami_webhook.routes import bare_app
from hamicommon.serving import serving, until_stopped


async def bare(request: Request) -> Response:
    """Reads and forgets."""
    await request.body()
    return Response(b"ok")


def create_app() -> FastAPI:
    """The webhook's application with another route."""
    app = bare_app()
    app.add_route("/bare", bare, methods=["POST"])
    return app


async def serve(bind: str, folder: Path) -> None:
    """Until SIGTERM."""
    pair = ServingCertificate(folder / "tls.crt", folder / "tls.key", Instruments())
    async with serving(create_app(), bind, ssl_context=pair.context):
        await until_stopped()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], Path(sys.argv[2])))
