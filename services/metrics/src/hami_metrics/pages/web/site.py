"""What all routes of the pages share: who looks, which moment, how an answer is made."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from hamicommon.errors import InvalidRequest, Unavailable
from hamicommon.ledger.showback import PriceList

from hami_metrics.pages.domain.capacity import NodeTallies, Totals, totals
from hami_metrics.pages.domain.cluster import PageCluster
from hami_metrics.pages.domain.notices import Notice
from hami_metrics.pages.feed import Feed, Trouble
from hami_metrics.pages.identity import Identity
from hami_metrics.pages.reading.activity import read_recent, read_use, read_waiting
from hami_metrics.pages.reading.cluster import read_nodes_at
from hami_metrics.pages.reading.session import PagesLedger
from hami_metrics.pages.reading.traces import TraceFiles
from hami_metrics.pages.rendering import HEADERS, Renderer
from hami_metrics.pages.views.elements.grid import RowCache
from hami_metrics.pages.views.elements.moments import PageMoment, page_moment
from hami_metrics.pages.views.elements.viewer import PageViewer
from hami_metrics.questions.asking import Seal

PAST_STATES = 4
"""Of a large cluster one is some 20 MB; people step to and fro between few."""
LONGEST_TEXT = 256
"""Characters of a filter, and of a name in an address: Kubernetes' names have 253 at most."""

LONGEST_KEY = 2048
"""Characters of the key of a list's next page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Who asks for which moment, and the state that answers."""

    viewer: PageViewer
    moment: PageMoment
    state: PageCluster | None
    trouble: Trouble | None
    notices: tuple[Notice, ...] = ()


@dataclass(slots=True, kw_only=True)
class Site:
    """The parts that routes work with."""

    ledger: PagesLedger
    feed: Feed
    identity: Identity
    renderer: Renderer
    clock: Callable[[], datetime]
    seal: Seal
    """Of the keys of lists, which name pods."""
    traces: TraceFiles
    trace_url: str = ""
    prices: PriceList | None = None
    rows: RowCache = field(default_factory=RowCache)
    tallies: NodeTallies = field(default_factory=NodeTallies)
    _totals: tuple[int, Totals] | None = None
    _past: OrderedDict[datetime, PageCluster] = field(default_factory=OrderedDict)

    async def asked(self, request: Request) -> Asked:
        """Raises: Unauthenticated, NotAllowed, InvalidRequest, Unavailable."""
        moment = page_moment(text_of(request, "at"), self.clock())
        # Who it is comes first: the ledger is read for nobody else.
        await self.identity.viewer(request, ())
        if moment.at is not None:
            state: PageCluster | None = await self._state_at(moment.at)
            trouble = None
            notices: tuple[Notice, ...] = ()
        else:
            look = await self.feed.look()
            state, trouble, notices = look.state, look.trouble, look.notices
        viewer = await self.identity.viewer(request, self.namespaces(state))
        return Asked(viewer=viewer, moment=moment, state=state, trouble=trouble, notices=notices)

    async def again(self, asked: Asked, request: Request, namespaces: Iterable[str]) -> Asked:
        """With these namespaces looked at too: an answer named them that the state does not."""
        names = {*self.namespaces(asked.state), *namespaces}
        return replace(asked, viewer=await self.identity.viewer(request, names))

    def totals(self, state: PageCluster) -> Totals:
        """Its sums; of the present ones, which all look at, once per version."""
        if state.past:
            return totals(state)
        if self._totals is None or self._totals[0] != state.version:
            self._totals = (state.version, totals(state, self.tallies))
            self.tallies.keep(state.nodes)
        return self._totals[1]

    def event_id(self, state: PageCluster) -> str:
        """Of an event that brings a page to this state; another process has other ones."""
        return f"{self.feed.epoch}-{state.version}"

    def namespaces(self, state: PageCluster | None) -> set[str]:
        """Whose names a page of this state might show."""
        if state is None:
            return set()
        return {*self.totals(state).held, *(one.namespace for one in state.recent)}

    async def _state_at(self, at: datetime) -> PageCluster:
        known = self._past.get(at)
        if known is not None:
            self._past.move_to_end(at)
            return known
        async with self.ledger.look() as connection:
            state = PageCluster(
                version=0,
                taken_at=at,
                nodes=await read_nodes_at(connection, at),
                use=await read_use(connection, at),
                recent=(await read_recent(connection, at))[0],
                past=True,
            )
        async with self.ledger.connection() as connection:
            waiting, reasons = await read_waiting(connection, at)
        state = replace(state, waiting=waiting, waiting_by_reason=reasons)
        # What is nearly now may still be written by transactions that go on.
        if self.clock() - at > timedelta(minutes=1):
            self._past[at] = state
            while len(self._past) > PAST_STATES:
                self._past.popitem(last=False)
        return state

    def answer(
        self, asked: Asked, template: str, *, status: int = 200, **values: Any
    ) -> HTMLResponse:
        """A page."""
        text = self.renderer.page(
            template,
            asked.moment,
            viewer=asked.viewer,
            state=asked.state,
            trouble=asked.trouble,
            notices=asked.notices,
            event_id="" if asked.state is None else self.event_id(asked.state),
            **values,
        )
        return HTMLResponse(text, status_code=status, headers=HEADERS)


def text_of(request: Request, name: str, most: int = LONGEST_TEXT) -> str:
    """A query parameter, or empty. Raises: InvalidRequest for several, or a long one."""
    values = request.query_params.getlist(name)
    if len(values) > 1:
        raise InvalidRequest(f"{name} stands {len(values)} times in the address; once is meant")
    text = values[0] if values else ""
    if len(text) > most:
        raise InvalidRequest(f"{name} has {len(text)} characters; {most} at most")
    if "\x00" in text:
        raise InvalidRequest(f"{name} has a character that no name has (NUL)")
    return text


def choice_of(request: Request, name: str, choices: Iterable[str], usual: str) -> str:
    """A query parameter that is one of these. Raises: InvalidRequest."""
    text = text_of(request, name) or usual
    allowed = list(choices)
    if text not in allowed:
        raise InvalidRequest(f"{name}: {text!r} is not one of {', '.join(allowed)}")
    return text


def needed(asked: Asked) -> PageCluster:
    """The state. Raises: Unavailable when there was never one."""
    if asked.state is None:
        sentence = "the ledger was not read yet" if asked.trouble is None else ""
        raise Unavailable(sentence or (asked.trouble.sentence if asked.trouble else ""))
    return asked.state
