"""What the webhook's server does when it has nothing to decide: the measure of bench/webhook.py.

The same server (`hamicommon.serving` with FastAPI), the same TLS, the same kind of route; it reads
the body of `POST /bare` to its end and answers two bytes.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from fastapi import FastAPI, Request, Response
from hami_webhook.certificates import ServingCertificate
from hami_webhook.instruments import Instruments
from hamicommon.serving import serving, until_stopped


async def bare(request: Request) -> Response:
    """Reads and forgets."""
    await request.body()
    return Response(b"ok")


async def serve(bind: str, folder: Path) -> None:
    """Until SIGTERM."""
    app = FastAPI(telemetry={"tracing": False, "metrics": False, "logs": False}, openapi_url=None)
    app.add_route("/bare", bare, methods=["POST"])
    pair = ServingCertificate(folder / "tls.crt", folder / "tls.key", Instruments())
    async with serving(app, bind, ssl_context=pair.context):
        await until_stopped()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], Path(sys.argv[2])))
