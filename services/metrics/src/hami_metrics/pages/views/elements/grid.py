"""The grid of cards: one cell a card, made once for all viewers who see the same. Pure.

A cell shows the state as glyph, the largest owner as letter and colour, and how full the memory is.
Its label has all of it in text. Rows of nodes that did not change are not made again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

from markupsafe import Markup, escape

from hami_metrics.pages.domain.cluster import (
    CardCondition,
    PageCard,
    PageNode,
    condition,
    silent,
)
from hami_metrics.pages.views.elements.amounts import bare_gib, granted_cores, share
from hami_metrics.pages.views.elements.owners import OwnerLetters
from hami_metrics.pages.views.elements.viewer import PageViewer

GLYPHS = {
    CardCondition.FULL: "●",
    CardCondition.PARTLY: "◐",
    CardCondition.FREE: "○",
    CardCondition.STRANDED: "▒",
    CardCondition.CORDONED: "⊘",
    CardCondition.UNHEALTHY: "✖",
    CardCondition.UNKNOWN: "?",
}
_CSS = {
    CardCondition.FULL: "full",
    CardCondition.PARTLY: "part",
    CardCondition.FREE: "free",
    CardCondition.STRANDED: "lost",
    CardCondition.CORDONED: "shut",
    CardCondition.UNHEALTHY: "sick",
    CardCondition.UNKNOWN: "unkn",
}
STYLES_KEPT = 4
"""Some 2 MB each of a large cluster: viewers who see different names, moments of the past."""
HOLDERS_NAMED = 3
"""In a cell's label; the card's page has all."""
SLICES_DRAWN = 40
"""More are thinner than a pixel."""
ROOMY_UP_TO = 24
"""Nodes of a grid whose cells have amounts and slices: more are no longer one screen."""
NAMED_UP_TO = 100
"""Nodes of a grid whose labels name holders: more make the page heavy, and the card's page is one
key away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What changes of a cell; it stands in its node's line, in the order of cards."""

    css: str
    text: str
    label: str
    amount: str = ""
    """Granted of the card's memory; in a roomy grid alone."""
    slices: tuple[tuple[str, float], ...] = ()
    """(class of the owner's colour, percent of the card), side by side; likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridStyle:
    """What the cells of one page share."""

    owners: OwnerLetters
    viewer: PageViewer
    named: bool
    past: bool
    roomy: bool = False
    """Few nodes: a cell has room for its amounts, and for each slice to scale."""
    at: str = ""
    """Query of links into the same moment: empty, or `?at=...`."""
    differing: frozenset[str] = frozenset()
    """Uuids of cards that are not so now, on a page that compares."""


def cells(node: PageNode, style: GridStyle, now: datetime) -> list[Cell]:
    """Of all cards of a node."""
    unheard = not style.past and silent(node, now)
    return [_cell(card, style, unheard=unheard) for card in node.cards]


def _cell(card: PageCard, style: GridStyle, *, unheard: bool) -> Cell:
    now = condition(card, unheard=unheard)
    fill = share(card.used_memory_mib, card.memory_mib)
    tenth = 0 if fill is None else (fill + 9) // 10
    css = f"c {_CSS[now]} f{tenth}"
    if card.used_slots:
        css += " h"
    text = GLYPHS[now]
    if card.holders:
        # An owner that the viewer may not see has no colour of its own either.
        namespace = style.viewer.namespace(card.holders[0].namespace)
        css = f"{css} {style.owners.css(namespace)}"
        text += style.owners.letter(namespace)
    label = _label(card, now, style)
    if card.uuid in style.differing:
        css, label = f"{css} differs", f"{label}; not so now"
    if not style.roomy:
        return Cell(css=css, text=text, label=label)
    amount = f"{bare_gib(card.used_memory_mib)}/{bare_gib(card.memory_mib)} GiB"
    return Cell(css=css, text=text, label=label, amount=amount, slices=_slices(card, style))


def _slices(card: PageCard, style: GridStyle) -> tuple[tuple[str, float], ...]:
    """Never more than the card: one that shrank under its grants has them squeezed."""
    whole = max(card.memory_mib, card.used_memory_mib, 1)
    return tuple(
        (
            style.owners.css(style.viewer.namespace(one.namespace)),
            round(100 * one.memory_mib / whole, 1),
        )
        for one in card.holders[:SLICES_DRAWN]
    )


def _label(card: PageCard, now: CardCondition, style: GridStyle) -> str:
    label = (
        f"{card.node} card {card.index}: {now}, "
        f"{bare_gib(card.used_memory_mib)} of {bare_gib(card.memory_mib)} GiB, "
        f"{granted_cores(card.used_core_percent, held=bool(card.holders))} cores"
    )
    if not card.healthy and card.health_reason:
        label += f", {card.health_reason}"
    if not card.holders:
        return label
    if not style.named:
        pods = len(card.holders)
        return f"{label}, {pods} pod{'' if pods == 1 else 's'}"
    named = ", ".join(
        f"{style.viewer.pod(one.namespace, one.pod_name)} {bare_gib(one.memory_mib)} GiB"
        for one in card.holders[:HOLDERS_NAMED]
    )
    more = len(card.holders) - HOLDERS_NAMED
    return f"{label}: {named}" + (f" and {more} more" if more > 0 else "")


def row(node: PageNode, style: GridStyle, now: datetime) -> str:
    """One node's line, as HTML: every value is escaped here."""
    name = escape(node.name)
    at = escape(style.at)
    href = f"/nodes/{quote(node.name, safe='')}"
    mark = "" if style.past or not silent(node, now) else "<b class=quiet>?</b>"
    shown = "".join(
        f'<a class="{one.css}" href="{href}/cards/{card.index}{at}"'
        f' tabindex=-1 aria-label="{escape(one.label)}">{_inside(one)}</a>'
        for card, one in zip(node.cards, cells(node, style, now), strict=True)
    )
    return f'<li id="n.{name}"><a class=n href="{href}{at}">{name}</a>{shown}{mark}</li>'


def _inside(cell: Cell) -> str:
    if not cell.amount:
        return cell.text
    at, drawn = 0.0, []
    for css, percent in cell.slices:
        drawn.append(f"<rect class={css} x={at:.1f} y=0 width={percent} height=10 />")
        at += percent
    return (
        f"<b>{cell.text}</b><i>{cell.amount}</i>"
        '<svg viewBox="0 0 100 10" preserveAspectRatio=none aria-hidden=true>'
        f"{''.join(drawn)}</svg>"
    )


class RowCache:
    """Lines of nodes as they were made last, for the few styles that are looked at."""

    def __init__(self) -> None:
        self._styles: list[tuple[GridStyle, dict[str, tuple[tuple[PageCard, ...], bool, Markup]]]]
        self._styles = []

    def rows(self, nodes: Iterable[PageNode], style: GridStyle, now: datetime) -> Markup:
        """The lines of these nodes, one after the other."""
        # Every line is escaped already, so they are joined as plain text.
        return Markup("".join([self.row(node, style, now) for node in nodes]))

    def row(self, node: PageNode, style: GridStyle, now: datetime) -> Markup:
        """The line; made again when its cards or its silence changed."""
        rows = self._of(style)
        unheard = not style.past and silent(node, now)
        known = rows.get(node.name)
        if known is not None and known[0] is node.cards and known[1] == unheard:
            return known[2]
        # Every value in it is escaped in `row`.
        made = Markup(row(node, style, now))
        rows[node.name] = (node.cards, unheard, made)
        return made

    def _of(self, style: GridStyle) -> dict[str, tuple[tuple[PageCard, ...], bool, Markup]]:
        if self._styles and self._styles[-1][0] is style:
            return self._styles[-1][1]
        for position, (known, rows) in enumerate(self._styles):
            if known == style:
                del self._styles[position]
                self._styles.append((style, rows))
                return rows
        self._styles = [*self._styles[1 - STYLES_KEPT :], (style, {})]
        return self._styles[-1][1]
