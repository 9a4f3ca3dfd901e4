"""The documentation site, opened from its folder without a server: its search answers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(browser: Any) -> Iterator[Any]:
    """The first page, opened as a file."""
    subprocess.run([ROOT / "scripts" / "docs"], cwd=ROOT, check=True)
    with browser.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_S * 1000)
        page.goto((ROOT / "site" / "index.html").as_uri())
        yield page


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ("quota", "tasks.html"),
        ("share a gpu between two deployments", "tasks.html"),
        ("notebook", "tasks.html"),
        ("drain a node", "operations.html"),
        ("take a card out of service", "operations.html"),
        ("restore a backup", "operations.html"),
        ("pod stays pending", "troubleshooting.html"),
        ("upgrade", "helm.html"),
        ("urgent pod", "preemption.html"),
        ("gang", "groups.html"),
        ("autoscaler", "scaling.html"),
    ],
)
def test_a_page_of_tasks_is_found_first(site: Any, asked: str, wanted: str) -> None:
    box = site.locator("input.md-search__input")
    box.fill("")
    box.focus()
    site.keyboard.type(asked)

    site.wait_for_function(
        """wanted => document.querySelector(".md-search-result__link")?.href.includes(wanted)""",
        arg=f"/{wanted}",
    )
