"""Parts that all routes of the pages share: viewer, moment, state and response."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from cachetools import LRUCache
from fastapi import Request
from fastapi.responses import HTMLResponse
from hamicommon.errors import InvalidRequest, Unavailable
from hamicommon.ledger.showback import PriceList

from hami_metrics.domain.redaction import PageViewer
from hami_metrics.pages.amounts import PageMoment, page_moment
from hami_metrics.pages.cluster import ClusterSums, PageCluster, SumCache, cluster_sums
from hami_metrics.pages.feed import Feed, Notice, Trouble
from hami_metrics.pages.grid import LineCache
from hami_metrics.pages.identity import Identity
from hami_metrics.pages.readings import PagesLedger, read_state_at
from hami_metrics.pages.rendering import HEADERS, Renderer
from hami_metrics.questions.asking import Seal

MAX_PAST_STATES = 4
"""Maximum number of cached past states, 20 MB each for a large cluster."""
SETTLED_AFTER = timedelta(minutes=1)
"""Age from which a moment's state can't be changed by running transactions."""
MAX_TEXT = 256
"""Maximum characters of a filter or of a name in an address."""
MAX_KEY = 2048
"""Maximum characters of the key of a list's next page."""
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """Viewer and moment of a request, and the state that answers it."""

    viewer: PageViewer
    moment: PageMoment
    state: PageCluster | None
    trouble: Trouble | None = None
    notices: tuple[Notice, ...] = ()


@dataclass(slots=True, kw_only=True)
class Site:
    """Parts that routes use."""

    ledger: PagesLedger
    feed: Feed
    identity: Identity
    renderer: Renderer
    clock: Callable[[], datetime]
    seal: Seal
    """Encryption of the keys of lists, which name pods."""
    trace_url: str = ""
    prices: PriceList | None = None
    sum_cache: SumCache = field(default_factory=SumCache)
    lines: LineCache = field(default_factory=LineCache)
    _sums: tuple[int, ClusterSums] | None = None
    _past: LRUCache[datetime, PageCluster] = field(
        default_factory=lambda: LRUCache(MAX_PAST_STATES)
    )

    async def open_request(self, request: Request) -> PageRequest:
        """Identify the viewer, and read the state of the requested moment.

        Raises: Unauthenticated, NotAllowed, InvalidRequest, Unavailable.
        """
        moment = page_moment(text_of(request, "at"), self.clock())
        # The viewer is identified first: without one the ledger is not read.
        viewer = await self.identity.viewer(request, ())
        if moment.at is not None:
            asked = PageRequest(viewer=viewer, moment=moment, state=await self._state_at(moment.at))
        else:
            look = await self.feed.look()
            asked = PageRequest(
                viewer=viewer,
                moment=moment,
                state=look.state,
                trouble=look.trouble,
                notices=look.notices,
            )
        return await self.review_names(asked, request, ())

    async def review_names(
        self, asked: PageRequest, request: Request, namespaces: Iterable[str]
    ) -> PageRequest:
        """Review more namespaces, which an answer names although the state does not."""
        names = {*self.namespaces(asked.state), *namespaces}
        return replace(asked, viewer=await self.identity.viewer(request, names))

    def sums(self, state: PageCluster) -> ClusterSums:
        """Return the sums of a state of the cluster.

        All viewers share those of the present state, so they are computed once per version.
        """
        if state.past:
            return cluster_sums(state)
        if self._sums is None or self._sums[0] != state.version:
            self._sums = (state.version, cluster_sums(state, self.sum_cache))
            self.sum_cache.keep(state.nodes)
        return self._sums[1]

    def namespaces(self, state: PageCluster | None) -> set[str]:
        """Return the namespaces that a page of this state might name."""
        if state is None:
            return set()
        return {*self.sums(state).held_mib, *(one["namespace"] for one in state.recent)}

    async def _state_at(self, at: datetime) -> PageCluster:
        known = self._past.get(at)
        if known is not None:
            return known
        state = await read_state_at(self.ledger, at)
        if self.clock() - at > SETTLED_AFTER:
            self._past[at] = state
        return state

    def answer(
        self, asked: PageRequest, template: str, *, status: int = 200, **values: Any
    ) -> HTMLResponse:
        """Return a rendered page."""
        values = {"here": "", "subject": "", **values}
        text = self.renderer.page(
            template,
            asked.moment,
            viewer=asked.viewer,
            state=asked.state,
            trouble=asked.trouble,
            notices=asked.notices,
            **values,
        )
        return HTMLResponse(text, status_code=status, headers=HEADERS)


def text_of(request: Request, name: str, longest: int = MAX_TEXT) -> str:
    """Return a query parameter, or empty. Raises: InvalidRequest for several, or a long one."""
    values = request.query_params.getlist(name)
    if len(values) > 1:
        raise InvalidRequest(f"{name} is given {len(values)} times in the address; give it once")
    text = values[0] if values else ""
    if len(text) > longest:
        raise InvalidRequest(f"{name} has {len(text)} characters; at most {longest} are allowed")
    if "\x00" in text:
        raise InvalidRequest(f"{name} contains a NUL character; remove it")
    return text


def choice_of(request: Request, name: str, choices: Iterable[str], usual: str) -> str:
    """Return a query parameter that is one of these. Raises: InvalidRequest."""
    text = text_of(request, name) or usual
    allowed = list(choices)
    if text not in allowed:
        raise InvalidRequest(f"{name}: {text!r} is not one of {', '.join(allowed)}")
    return text


def state_of(asked: PageRequest) -> PageCluster:
    """Return the state. Raises: Unavailable if none was ever read."""
    if asked.state is None:
        raise Unavailable(
            "the ledger has not been read yet" if asked.trouble is None else asked.trouble.sentence
        )
    return asked.state


def key_text(key: tuple[datetime, str]) -> str:
    """Encode time and id at which a list's next page begins, for `after=`."""
    return f"{key[0].isoformat()}~{key[1]}"


def key_of(text: str) -> tuple[datetime, str] | None:
    """Parse `after=`; None if it is empty. Raises: InvalidRequest."""
    if not text:
        return None
    moment, _, last = text.partition("~")
    try:
        at = datetime.fromisoformat(moment)
        if at.tzinfo is None or not 2000 <= at.year < 9999 or not _UUID.fullmatch(last):
            raise ValueError(text)
    except ValueError:
        raise InvalidRequest(
            "after: this key is not from a link of this list; open the list without it"
        ) from None
    return at, last
