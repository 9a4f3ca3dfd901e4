"""Chromium, driven by Playwright: both come with `make test-pages` and are optional elsewhere."""

import importlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.waiting import PATIENCE_S

BINARIES = ("chromium", "chromium-browser", "google-chrome")
SIZE = {"width": 1280, "height": 800}


def why_missing() -> str | None:
    """Name the missing program; None if Chromium and Playwright are there."""
    if _binary() is None:
        return "no Chromium: apt-get install chromium, or CHROMIUM=/path/to/it"
    try:
        importlib.import_module("playwright.sync_api")
    except ImportError:
        return "no Playwright: make test-pages installs it"
    return None


def _binary() -> str | None:
    named = os.environ.get("CHROMIUM", "")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, BINARIES)), None)


@contextmanager
def chromium() -> Iterator[Any]:
    """A running browser (Playwright's `Browser`)."""
    playwright = importlib.import_module("playwright.sync_api")
    # Root can't make user namespaces in a container, so the sandbox is off; only our own pages are
    # opened.
    options = ["--no-sandbox", "--disable-dev-shm-usage"]
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=_binary(), args=options)
        try:
            yield browser
        finally:
            browser.close()


@dataclass(frozen=True, slots=True)
class Watched:
    """A page, and the complaints of its console and its scripts."""

    page: Any
    complaints: list[str] = field(default_factory=list)

    def expect(self, status: str) -> None:
        """Chromium writes statuses that are errors into the console; these are meant."""
        self.complaints[:] = [one for one in self.complaints if f"a status of {status}" not in one]


@contextmanager
def a_page(browser: Any, url: str, **context: Any) -> Iterator[Watched]:
    """A page of a fresh profile; its complaints fail the test at the end."""
    profile = browser.new_context(base_url=url, viewport=SIZE, **context)
    profile.set_default_timeout(1000 * PATIENCE_S)
    try:
        watched = Watched(profile.new_page())
        watch(watched.page, watched.complaints)
        yield watched
        assert not watched.complaints, watched.complaints
    finally:
        profile.close()


def watch(page: Any, complaints: list[str]) -> None:
    """Record errors of the console (CSP's too), of scripts, and boxes that scripts open."""

    def on_console(message: Any) -> None:
        if message.type == "error":
            complaints.append(message.text)

    def on_dialog(dialog: Any) -> None:
        complaints.append(f"a script opened a box: {dialog.message}")
        dialog.dismiss()

    page.on("console", on_console)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", on_dialog)


def live(page: Any) -> None:
    """Wait until the page's stream is open and has delivered something."""
    page.locator("#live", has_text="live ●").wait_for()


def serious(page: Any) -> list[str]:
    """Return the violations that axe finds serious or critical, with their first places."""
    axe = importlib.import_module("axe_playwright_python.sync_playwright").Axe()
    return [
        f"{violation['id']} at {[' '.join(node['target']) for node in violation['nodes'][:3]]}"
        for violation in axe.run(page).response["violations"]
        if violation["impact"] in ("serious", "critical")
    ]
