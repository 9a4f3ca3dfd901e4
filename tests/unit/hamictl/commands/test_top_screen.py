"""The live screen by its keys, on the answers of one look."""

from __future__ import annotations

from typing import Any

import pytest
from hamicommon.errors import Unavailable
from hamictl.commands.top_rows import TopLook

from tests.unit.hamictl.commands.test_top_rows import LOOK

# Textual's own waits for a drawn screen are 30 s of the clock: not for a machine that is full.
pytestmark = pytest.mark.slow


def screen() -> Any:
    from hamictl.commands.top_screen import TopScreen

    return TopScreen(LOOK, filter_text="", problems=False, sort="node")


def cards(app: Any) -> list[str]:
    return [str(key.value) for key in app.query_one("#cards").rows]


def line_above(app: Any) -> str:
    return str(app.query_one("#heading").render())


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
async def test_keys_filter_order_and_mark(size: tuple[int, int]) -> None:
    app = screen()
    async with app.run_test(size=size) as pilot:
        assert cards(app) == ["GPU-0", "GPU-1"]
        await pilot.press("z")
        assert cards(app) == ["GPU-1"]
        await pilot.press("z", "slash", *"nlp", "enter")
        assert cards(app) == ["GPU-0"]
        assert not app.query_one("#filter").has_class("shown")
        await pilot.press("slash", *["backspace"] * 3, "enter", "o", "m")
        assert "by memory" in line_above(app)
        assert cards(app) == ["GPU-0", "GPU-1"]
        narrow = len(app.query_one("#cards").columns)
        await pilot.press("w")
        assert len(app.query_one("#cards").columns) == narrow + 1
        assert "GPU-0" in app.query_one("#cards").get_row("GPU-0")
        await pilot.press("w")
        assert len(app.query_one("#cards").columns) == narrow
        await pilot.press("space")
        assert app.query_one("#cards").get_row("GPU-0")[0] == "*"
        await pilot.press("h")
        assert app.query_one("#help").styles.display == "block"
        await pilot.press("escape", "q")
    assert app.return_code == 0


async def test_while_the_service_is_away_the_last_figures_stay_and_are_dated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from hamictl.commands import top_screen

    async def raise_unavailable(_client: object) -> TopLook:
        raise Unavailable("metrics is away")

    monkeypatch.setattr(top_screen, "look_at", raise_unavailable)
    monkeypatch.setattr(top_screen, "QuestionClient", lambda _target: None)
    app = screen()
    async with app.run_test(size=(200, 30)):
        await app._look_again()
        assert "as of 2026-11-20T14:05:00Z: metrics is away" in line_above(app)
        assert cards(app) == ["GPU-0", "GPU-1"]
