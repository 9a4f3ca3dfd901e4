"""Pages `/nodes/{name}` and `/cards/{uuid}`: granted and used amounts of cards, and history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from hamicommon.errors import NotFound
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.footprint import footprint

from hami_metrics.pages.cluster import CardCondition, MeasuredUse, PageCard, Row, condition
from hami_metrics.pages.readings import card_use, read_use
from hami_metrics.pages.rendering import HEADERS, link, segment
from hami_metrics.pages.site import (
    PageRequest,
    Site,
    choice_of,
    key_of,
    key_text,
    state_of,
    text_of,
)

WINDOW_HOURS = {"1h": 1, "6h": 6, "24h": 24, "7d": 168, "30d": 720}
"""Windows of a card's history, in hours."""
PAGE_ROWS = 100
MAX_HELD = 200
"""Maximum number of holders among which changes near a moment are searched."""
MAX_HEALTH_EVENTS = 50

_HEALTH = """
SELECT at, node, device_uuid, healthy, reason FROM device_health_events
 WHERE device_uuid = ANY($1::text[]) AND at > $2::timestamptz - interval '30 days' AND at <= $2
 ORDER BY at DESC, id DESC LIMIT 200
"""
_DRIFT = """
SELECT at, "class" AS kind, subject, detail, repaired FROM drift_journal
 WHERE at > $2::timestamptz - interval '7 days' AND at <= $2
   AND (subject = $1 OR detail LIKE '%' || $3 || '%')
 ORDER BY at DESC, id DESC LIMIT 20
"""
_CARD_OF_NODE = """
SELECT uuid FROM devices WHERE node = $1 AND index = $2 ORDER BY present DESC, uuid LIMIT 1
"""
_NODE_OF_CARD = "SELECT node, index FROM devices WHERE uuid = $1"
# Narrowed to the card before the join: one card gave thousands of slices in a year.
_HELD = f"""
SELECT a.id::text AS allocation_id, a.pod_uid, a.namespace, a.pod_name, a.state, a.reason,
       a.reserved_at AS began_at, a.ended_at,
       {footprint("memory_mib")} AS memory_mib,
       {footprint("core_percent")} AS core_percent
  FROM allocation_devices x JOIN allocations a ON a.id = x.allocation_id
 WHERE x.device_uuid = $1 AND a.reserved_at <= $2
   AND ($3::timestamptz IS NULL OR (a.reserved_at, a.id) < ($3, $4::uuid))
   AND (a.ended_at IS NULL OR a.ended_at > $5)
 GROUP BY a.id ORDER BY a.reserved_at DESC, a.id DESC LIMIT {MAX_HELD + 1}
"""
_COUNTS = """
SELECT (SELECT count(DISTINCT a.pod_uid)
          FROM allocation_devices x JOIN allocations a ON a.id = x.allocation_id
         WHERE x.device_uuid = $1 AND a.reserved_at <= $2
           AND (a.ended_at IS NULL OR a.ended_at > $2::timestamptz - interval '30 days'))
       AS holders,
       count(DISTINCT s.sick_at) AS incidents,
       count(DISTINCT a.pod_uid) FILTER (
           WHERE hami_held(a.reserved_at, a.ended_at) && s.sick) AS hit
  FROM (SELECT sick_at, sick FROM v_sick_cards
         WHERE device_uuid = $1 AND sick_at <= $2
           AND (well_at IS NULL OR well_at > $2::timestamptz - interval '30 days')) s
  LEFT JOIN (allocation_devices x JOIN allocations a ON a.id = x.allocation_id
         AND (a.ended_at IS NULL OR a.ended_at > $2::timestamptz - interval '30 days'))
    ON x.device_uuid = $1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardLine:
    """Card in a table; None is unknown."""

    card: PageCard
    condition: CardCondition
    used_mib: float | None
    core_used_percent: float | None
    unhealthy_since: datetime | None
    """Time of the health event of an unhealthy card."""


def card_lines(
    cards: Sequence[PageCard],
    use: Mapping[str, MeasuredUse],
    health: Sequence[Row],
    *,
    silent: bool,
) -> list[CardLine]:
    """Return table rows for cards of one node; `health`: their events, the newest first."""
    last = {event["device_uuid"]: event for event in reversed(health)}
    lines = []
    for card in cards:
        now = condition(card, silent=silent)
        used = use.get(card.uuid)
        event = last.get(card.uuid)
        is_dated = now is CardCondition.UNHEALTHY and event is not None and not event["healthy"]
        lines.append(
            CardLine(
                card=card,
                condition=now,
                used_mib=None if used is None else used.memory_mib,
                core_used_percent=None if used is None else used.core_percent,
                unhealthy_since=event["at"] if is_dated and event is not None else None,
            )
        )
    return lines


def changes(held: Sequence[Row], health: Sequence[Row]) -> list[datetime]:
    """Return the times at which something about the card changed, in order."""
    moments = {one["began_at"] for one in held} | {event["at"] for event in health}
    moments |= {one["ended_at"] for one in held if one["ended_at"] is not None}
    return sorted(moments)


def neighbours(
    moments: Sequence[datetime], at: datetime
) -> tuple[datetime | None, datetime | None]:
    """Return the change before and the one after a moment."""
    # A link has microseconds; a change that is equal to the moment is the one that is shown.
    step = timedelta(microseconds=1)
    before = next((one for one in reversed(moments) if one <= at - step), None)
    after = next((one for one in moments if one >= at + step), None)
    return before, after


def routes(site: Site) -> APIRouter:
    """Serve the pages of nodes and cards."""
    router = APIRouter()

    @router.get("/nodes/{name}")
    async def node_page(name: str, request: Request) -> Response:
        asked = await site.open_request(request)
        state, at = state_of(asked), asked.moment.shown
        node = state.nodes.get(name)
        if node is None:
            then = " at that moment" if asked.moment.past else ""
            raise NotFound(f"the ledger has no node {name!r}{then}")
        async with site.ledger.look() as connection:
            use = card_use(await read_use(connection, [name], at, summed=state.past))
            health = await connection.fetch(_HEALTH, [card.uuid for card in node.cards], at)
            drift = await _read_drift(connection, asked, name)
        silent = state.is_silent(node)
        return site.answer(
            asked,
            "node.html",
            node=node,
            silent=silent,
            lines=card_lines(node.cards, use, health, silent=silent),
            health=health[:20],
            drift=drift,
            indexes={card.uuid: card.index for card in node.cards},
            here="nodes",
            subject=name,
        )

    @router.get("/nodes/{name}/cards/{index}")
    async def card_of_node(name: str, index: int, request: Request) -> Response:
        asked = await site.open_request(request)
        node = None if asked.state is None else asked.state.nodes.get(name)
        here = () if node is None else node.cards
        uuid = next((card.uuid for card in here if card.index == index), None)
        if uuid is None:
            async with site.ledger.look() as connection:
                uuid = await connection.fetchval(_CARD_OF_NODE, name, min(index, 2**31 - 1))
        if uuid is None:
            raise NotFound(f"node {name} has no card {index}")
        path = f"/cards/{segment(uuid)}"
        return RedirectResponse(link(asked.moment, path), status_code=307, headers=HEADERS)

    @router.get("/cards/{uuid}")
    async def card_page(uuid: str, request: Request) -> Response:
        asked = await site.open_request(request)
        window = choice_of(request, "window", WINDOW_HOURS, "24h")
        after = key_of(text_of(request, "after"))
        return await _card(site, asked, uuid, window, after)

    return router


async def _read_drift(connection: Connection, asked: PageRequest, node: str) -> Sequence[Row]:
    """Read the reconciler's findings on the node, which name pods of all namespaces."""
    if asked.viewer.namespaces is not None:
        return ()
    pattern = node.replace("\\", "\\\\").replace("%", r"\%").replace("_", r"\_")
    rows: Sequence[Row] = await connection.fetch(_DRIFT, node, asked.moment.shown, pattern)
    return rows


async def _card(
    site: Site, asked: PageRequest, uuid: str, window: str, after: tuple[datetime, str] | None
) -> Response:
    state, at = state_of(asked), asked.moment.shown
    since = at - timedelta(hours=WINDOW_HOURS[window])
    found = [
        (node, card) for node in state.nodes.values() for card in node.cards if card.uuid == uuid
    ]
    async with site.ledger.look() as connection:
        known = [(card.node, card.index) for _, card in found]
        known = known or [*map(tuple, await connection.fetch(_NODE_OF_CARD, uuid))]
        if not known:
            raise NotFound(f"the ledger has no card {uuid!r}")
        name, index = known[0]
        recent = held = await connection.fetch(_HELD, uuid, at, None, None, since)
        if after is not None:
            held = await connection.fetch(_HELD, uuid, at, *after, since)
        health = await connection.fetch(_HEALTH, [uuid], at)
        counts = await connection.fetchrow(_COUNTS, uuid, at)
        use = card_use(await read_use(connection, [name], at, summed=state.past))
    page = held[:PAGE_ROWS]
    line = None
    for node, card in found:
        [line] = card_lines([card], use, health, silent=state.is_silent(node))
    previous, following = neighbours(changes(recent, health), at)
    more = (page[-1]["began_at"], page[-1]["allocation_id"]) if len(held) > PAGE_ROWS else None
    return site.answer(
        asked,
        "card.html",
        uuid=uuid,
        node=name,
        index=index,
        line=line,
        counts=counts,
        held=page,
        health=health[:MAX_HEALTH_EVENTS],
        previous=previous,
        following=following if asked.moment.past else None,
        window=window,
        windows=list(WINDOW_HOURS),
        more=None if more is None else key_text(more),
        here="nodes",
        subject=name,
    )
