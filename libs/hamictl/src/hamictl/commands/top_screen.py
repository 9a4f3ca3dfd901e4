"""Live screen of `hamictl top`, refreshed every two seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar

import typer
from hamicommon.errors import HamiError
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Input, Static

from hamictl.commands.top import look_at
from hamictl.commands.top_rows import (
    NARROW,
    SORTS,
    TopCard,
    TopLook,
    bar,
    chosen,
    cores,
    heading,
    holders,
    memory,
)
from hamictl.output.records import Form, OutputFormat
from hamictl.output.terminal import plain
from hamictl.questions import QuestionClient
from hamictl.target import find_target

REFRESH_S = 2.0
JSON = OutputFormat(Form.JSON)
HELP = (
    "/ filter (!text: without)   o, then n m u c h: order by node, memory, used, cores, holders\n"
    "z unhealthy cards only   w wide   space mark   Enter the card, y in JSON   e explain   t trace"
    "   p waiting   q quit"
)


class TopScreen(App[None]):
    """Textual application of the screen."""

    CSS = "#filter { display: none; } #filter.shown { display: block; } #help { display: none; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter"),
        Binding("o", "order", "order"),
        Binding("z", "problems", "problems"),
        Binding("w", "wide", "wide"),
        Binding("space", "mark", "mark"),
        Binding("y", "json", "json"),
        Binding("e", "explain", "explain"),
        Binding("t", "trace", "trace"),
        Binding("p", "pending", "waiting"),
        Binding("h,question_mark", "help", "help"),
        Binding("escape", "to_cards", "back", show=False),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, first: TopLook, *, filter_text: str, problems: bool, sort: str) -> None:
        super().__init__()
        self._look = first
        self._filter_text = filter_text
        self._problems = problems
        self._sort = sort
        self._ordering = False
        self._wide = False
        self._marked: set[str] = set()
        self._trouble = ""

    def compose(self) -> ComposeResult:
        """Lay out the summary line, the cards, and the line for input."""
        yield Static(id="heading")
        yield Static(HELP, id="help")
        yield Input(placeholder="filter", id="filter")
        yield DataTable(id="cards", cursor_type="row", zebra_stripes=False)
        yield Footer()

    def on_mount(self) -> None:
        """Show the first figures, and start to refresh."""
        self._draw()
        self.query_one("#cards").focus()
        self.set_interval(REFRESH_S, self._look_again)

    async def _look_again(self) -> None:
        try:
            self._look = await look_at(QuestionClient(find_target()))
            self._trouble = ""
        except HamiError as exc:
            # The last figures stay on the screen, with their time.
            self._trouble = str(exc)
        self._draw()

    def _cards(self) -> list[TopCard]:
        return chosen(
            self._look, filter_text=self._filter_text, problems=self._problems, sort=self._sort
        )

    def _draw(self) -> None:
        trouble = f"   ✖ as of {self._look.as_of}: {self._trouble}" if self._trouble else ""
        order = "   order by n m u c h?" if self._ordering else f"   by {self._sort}"
        text = f"{heading(self._look)}{order}{trouble}"
        self.query_one("#heading", Static).update(plain(text))
        table = self.query_one("#cards", DataTable)
        at = table.cursor_row
        room = self.size.width >= NARROW
        table.clear(columns=True)
        bars = ("MEM GRANTED|USED", "") if room else ("MEM GRANTED|USED",)
        uuid = ("UUID",) if self._wide else ()
        table.add_columns("", "NODE", "CARD", "MODEL", *bars, "SM GRANTED|USED", *uuid, "HOLDERS")
        for card in self._cards():
            mark = "*" if card.uuid in self._marked else ""
            drawn = (bar(card), memory(card)) if room else (memory(card),)
            cells = [mark, card.node, str(card.index), card.model, *drawn, cores(card)]
            cells += (
                [card.uuid, holders(card, len(card.holders))] if self._wide else [holders(card)]
            )
            table.add_row(*map(plain, cells), key=card.uuid)
        if table.row_count:
            table.move_cursor(row=min(at, table.row_count - 1))

    def on_resize(self) -> None:
        """Adapt the bars to the new width."""
        if self.is_running:
            self._draw()

    def _selected_card(self) -> TopCard | None:
        cards, at = self._cards(), self.query_one("#cards", DataTable).cursor_row
        return cards[at] if 0 <= at < len(cards) else None

    def on_key(self, event: object) -> None:
        """Take the letter after `o` as the order."""
        key = getattr(event, "key", "")
        if self._ordering and key in SORTS:
            self._sort, self._ordering = SORTS[key], False
            getattr(event, "prevent_default", lambda: None)()
            self._draw()

    def action_order(self) -> None:
        """Ask for the letter of an order."""
        self._ordering = True
        self._draw()

    def action_problems(self) -> None:
        """Show only unhealthy cards, or all again."""
        self._problems = not self._problems
        self._draw()

    def action_wide(self) -> None:
        """Show all pods of cards and their uuids, or the short form."""
        self._wide = not self._wide
        self._draw()

    def action_mark(self) -> None:
        """Mark or unmark the card under the cursor."""
        card = self._selected_card()
        if card is not None:
            self._marked ^= {card.uuid}
            self._draw()

    def action_filter(self) -> None:
        """Ask for a filter text."""
        shown = self.query_one("#filter", Input)
        shown.add_class("shown")
        shown.value = self._filter_text
        shown.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Apply the filter text."""
        self._filter_text = event.value.strip()
        self.action_to_cards()

    def action_to_cards(self) -> None:
        """Close help, input and order, and return to the cards."""
        self._ordering = False
        self.query_one("#filter", Input).remove_class("shown")
        self.query_one("#help").styles.display = "none"
        self.query_one("#cards").focus()
        self._draw()

    def action_help(self) -> None:
        """Show or hide the list of keys; after `o`, take `h` as the order instead."""
        if self._ordering:
            self._sort, self._ordering = SORTS["h"], False
            self._draw()
            return
        shown = self.query_one("#help")
        shown.styles.display = "none" if shown.styles.display == "block" else "block"

    async def on_data_table_row_selected(self, _event: DataTable.RowSelected) -> None:
        """Describe the card under the cursor."""
        card = self._selected_card()
        if card is not None:
            from hamictl.commands.describe import describe

            await self._run_verb(lambda: describe("card", card.uuid))

    async def action_json(self) -> None:
        """Print the card under the cursor as JSON."""
        card = self._selected_card()
        if card is not None:
            from hamictl.commands.describe import describe

            await self._run_verb(lambda: describe("card", card.uuid, output=JSON))

    async def action_explain(self) -> None:
        """Explain the card's largest pod."""
        from hamictl.commands.answers import explain

        await self._of_holder(explain)

    async def action_trace(self) -> None:
        """Trace the card's largest pod."""
        from hamictl.commands.trace import trace

        await self._of_holder(trace)

    async def action_pending(self) -> None:
        """List the waiting pods."""
        from hamictl.commands.named import pending

        await self._run_verb(pending)

    async def _of_holder(self, verb: Callable[[str], None]) -> None:
        card = self._selected_card()
        if card is None or not card.holders:
            self.bell()
            return
        pod = card.holders[0][0]
        await self._run_verb(lambda: verb(pod))

    async def _run_verb(self, verb: Callable[[], None]) -> None:
        """Run another command on the plain terminal, until Enter is pressed.

        It runs in a thread, because verbs have their own event loops.
        """
        with self.suspend():
            await asyncio.to_thread(_until_enter, verb)


def _until_enter(verb: Callable[[], None]) -> None:
    # The terminal already shows the verb's final message.
    with suppress(typer.Exit, typer.BadParameter):
        verb()
    input("\nEnter returns to the cards")
