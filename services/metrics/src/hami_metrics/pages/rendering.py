"""Render templates; every value from outside is escaped.

The four states of a page are templates of their own (`templates/states/`): loading, empty, error,
stale.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from hamicommon.placement.rules import reason_term
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hami_metrics.pages import amounts
from hami_metrics.pages.amounts import PageMoment
from hami_metrics.pages.cluster import GLYPHS

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Renderer:
    """Renderer of this package's templates."""

    def __init__(self, cluster_name: str = "") -> None:
        self._environment = Environment(
            loader=FileSystemLoader(FOLDER / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.globals["cluster_name"] = cluster_name
        self._environment.filters |= {
            "gib": amounts.gib,
            "bare_gib": amounts.bare_gib,
            "percent": amounts.percent,
            "granted_cores": amounts.granted_cores,
            "count": amounts.count,
            "moment": amounts.moment,
            "clock_time": amounts.clock_time,
            "machine": amounts.machine,
            "milliseconds": amounts.milliseconds,
            "segment": segment,
            "reason_term": reason_term,
            "share": amounts.share,
            "glyph": GLYPHS.__getitem__,
        }

    def page(self, template: str, moment: PageMoment, **values: Any) -> str:
        """Render one page, or a part of one."""
        return self._environment.get_template(template).render(
            moment=moment,
            age=partial(_when, now=moment.shown),
            link=partial(link, moment),
            **values,
        )


def segment(text: str) -> str:
    """Quote one segment of a path."""
    return quote(text, safe="")


def link(moment: PageMoment, path: str, query: Mapping[str, object] | None = None) -> str:
    """Return an address within the pages that keeps the shown moment."""
    pairs = {name: str(value) for name, value in (query or {}).items() if value not in (None, "")}
    if moment.at is not None:
        pairs.setdefault("at", amounts.machine(moment.at))
    return f"{path}?{urlencode(pairs)}" if pairs else path


def _when(at: datetime | None, *, now: datetime) -> Markup:
    """Return a time: relative as text, absolute as title."""
    if at is None:
        return Markup('<span class="unknown" title="never known">?</span>')
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        amounts.machine(at), amounts.moment(at), amounts.age(at, now)
    )
