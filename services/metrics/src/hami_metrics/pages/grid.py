"""Grid of cards: one cell per card, one line per node. Pure.

A cell shows the state as glyph, the granted share of the card's memory as bar, and all of it in
text as label. A line is made once for all viewers who see the same names, and again only if its
node changed; pages and the stream of changes share it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote

from markupsafe import Markup, escape

from hami_metrics.domain.redaction import PageViewer
from hami_metrics.pages.amounts import bare_gib, granted_cores, share
from hami_metrics.pages.cluster import (
    GLYPHS,
    CardCondition,
    PageCard,
    PageCluster,
    PageNode,
    condition,
)

MAX_HOLDERS_NAMED = 3
"""Maximum number of holders in a cell's label; the card's page has all."""
MAX_NAMING_NODES = 100
"""Maximum number of nodes whose labels name holders, as more make the page heavy."""
MAX_STYLES = 4
"""Maximum number of styles whose lines are cached, 2 MB each for a large cluster."""
_CSS = {
    CardCondition.FULL: "full",
    CardCondition.PARTLY: "part",
    CardCondition.FREE: "free",
    CardCondition.STRANDED: "lost",
    CardCondition.CORDONED: "shut",
    CardCondition.UNHEALTHY: "sick",
    CardCondition.UNKNOWN: "unkn",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GridStyle:
    """Choices that determine a line, besides its node."""

    viewer: PageViewer
    named: bool
    """Whether labels name holders."""
    at: str = ""
    """Query of links at the same moment: empty, or `?at=...`."""
    differing: frozenset[str] = frozenset()
    """Uuids of cards that differ from now, on a page that compares."""


def grid_style(state: PageCluster, viewer: PageViewer) -> GridStyle:
    """Return the style of the present grid."""
    return GridStyle(viewer=viewer, named=len(state.nodes) <= MAX_NAMING_NODES)


def grid_line(node: PageNode, style: GridStyle, *, silent: bool) -> Markup:
    """Return one node's line as HTML, with every value escaped."""
    name, at = escape(node.name), escape(style.at)
    href = f"/nodes/{quote(node.name, safe='')}"
    cells = "".join(
        _cell(card, style, f"{href}/cards/{card.index}{at}", silent) for card in node.cards
    )
    mark = "<b class=quiet>?</b>" if silent else ""
    return Markup(
        f'<li id="n.{name}" data-group="{escape(node.group)}"><a class=n href="{href}{at}">{name}'
        f"</a>{cells}{mark}</li>"
    )


def _cell(card: PageCard, style: GridStyle, href: str, silent: bool) -> str:
    now = condition(card, silent=silent)
    fill = share(card.used_memory_mib, card.memory_mib)
    css = f"c {_CSS[now]} f{0 if fill is None else (fill + 9) // 10}"
    if card.used_slots:
        css += " h"
    label = _label(card, now, style)
    if card.uuid in style.differing:
        css, label = f"{css} differs", f"{label}; different now"
    return (
        f'<a class="{css}" href="{href}" tabindex=-1 aria-label="{escape(label)}">{GLYPHS[now]}</a>'
    )


def _label(card: PageCard, now: CardCondition, style: GridStyle) -> str:
    label = (
        f"{card.node} card {card.index}: {now}, "
        f"{bare_gib(card.used_memory_mib - card.room_mib)} of {bare_gib(card.memory_mib)} GiB, "
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
        for one in card.holders[:MAX_HOLDERS_NAMED]
    )
    more = len(card.holders) - MAX_HOLDERS_NAMED
    return f"{label}: {named}" + (f" and {more} more" if more > 0 else "")


_Line = tuple[tuple[PageCard, ...], str, bool, Markup]
"""Line with the cards, the group and the silence from which it was rendered."""


class LineCache:
    """Cache of nodes' lines for a few styles."""

    def __init__(self) -> None:
        self._styles: list[tuple[GridStyle, dict[str, _Line]]] = []

    def lines(self, state: PageCluster, nodes: Iterable[PageNode], style: GridStyle) -> Markup:
        """Return the lines of these nodes as one text."""
        # Each is escaped already, so they are joined as plain text.
        return Markup("".join([self.line(state, node, style) for node in nodes]))

    def line(self, state: PageCluster, node: PageNode, style: GridStyle) -> Markup:
        """Return the line, rendered again if the node's cards, group or silence changed."""
        lines = self._of_style(style)
        silent = state.is_silent(node)
        known = lines.get(node.name)
        if known and known[0] is node.cards and known[1:3] == (node.group, silent):
            return known[3]
        written = grid_line(node, style, silent=silent)
        lines[node.name] = (node.cards, node.group, silent, written)
        return written

    def _of_style(self, style: GridStyle) -> dict[str, _Line]:
        for position, (known, lines) in enumerate(self._styles):
            if known is style or known == style:
                self._styles.append(self._styles.pop(position))
                return lines
        self._styles = [*self._styles[1 - MAX_STYLES :], (style, {})]
        return self._styles[-1][1]
