"""Scripts and styles: files of this package, named in a table; no other path is opened."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from fastapi import APIRouter, Request
from fastapi.responses import Response
from hamicommon.errors import NotFound

from hami_metrics.pages.rendering import HEADERS, STATIC
from hami_metrics.pages.web.site import Site

_TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"} | {
    ".svg": "image/svg+xml"
}
FILES: Mapping[str, str] = {
    "hami.js": "hami.js",
    "keys.js": "keys.js",
    "stream.js": "stream.js",
    "charts.js": "charts.js",
    "hami.css": "hami.css",
    "icon.svg": "icon.svg",
    "htmx.min.js": "vendor/htmx.min.js",
    "uplot.min.js": "vendor/uplot.min.js",
    "uplot.min.css": "vendor/uplot.min.css",
}
"""Name in an address to the file in `static/`."""


def routes(_site: Site) -> APIRouter:
    """`/static/{name}`; kept by browsers until the content changes."""
    router = APIRouter()
    contents = {name: (STATIC / path).read_bytes() for name, path in FILES.items()}
    tags = {name: f'"{hashlib.sha256(text).hexdigest()[:32]}"' for name, text in contents.items()}

    @router.get("/static/{name}")
    async def static(name: str, request: Request) -> Response:
        text = contents.get(name)
        if text is None:
            raise NotFound(f"there is no file {name[:64]!r}")
        headers = {**HEADERS, "Cache-Control": "no-cache", "ETag": tags[name]}
        if request.headers.get("if-none-match") == tags[name]:
            return Response(status_code=304, headers=headers)
        suffix = name[name.rindex(".") :]
        return Response(text, media_type=_TYPES[suffix], headers=headers)

    return router
