"""Postgres, NATS, the scheduler and an agent stop in turn, of a whole running system.

Each open page reports it without a reload, keeps its last figures with their date, and recovers.
The supervisor is stopped while a part is down: otherwise it would restart the part immediately.
"""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hamilocal.supervisor.state_file import running_supervisor

from tests import measured
from tests.browser.chromium import a_page, live
from tests.e2e.conftest import running_system
from tests.e2e.system import System, a_pod, slice_of, wait

NOTICES = {
    "postgres": "Ledger unreachable since",
    "nats": "NATS unreachable",
    "scheduler": "No scheduler is connected to the ledger",
    "node-agent-node-0": "1 agent is silent: node-0",
}


@pytest.fixture(scope="module")
def system(browser: Any) -> Iterator[System]:
    """Asked for after the browser, which may lack."""
    with running_system("emulator") as started:
        started.run(a_pod("held", slice_of(2000, 10)))
        yield started


def entry(system: System, service: str) -> dict[str, Any]:
    state = json.loads((system.folder / "state.json").read_text())
    return dict(state["services"].get(service, {}))


@contextmanager
def stop_service(system: System, service: str) -> Iterator[None]:
    """The part is killed and not started again within the block."""
    pid = int(wait(lambda: entry(system, service).get("pid"), f"{service} to run"))
    supervisor = running_supervisor(system.folder / "state.json")
    assert supervisor is not None
    os.kill(supervisor.pid, signal.SIGSTOP)
    try:
        os.kill(pid, signal.SIGKILL)
        yield
    finally:
        os.kill(supervisor.pid, signal.SIGCONT)


@pytest.mark.parametrize("service", NOTICES)
def test_every_open_page_shows_it_keeps_its_figures_and_recovers(
    browser: Any, system: System, service: str
) -> None:
    card = system.sql(
        "SELECT d.uuid FROM devices d WHERE d.node = 'node-0' ORDER BY d.index LIMIT 1"
    )
    paths = {
        "overview": "/",
        "node": "/nodes/node-0",
        "card": f"/cards/{card}",
        "pod": "/pods/default/held",
        "pending": "/pending",
        "history": "/history",
        "showback": "/showback",
    }
    url = str(system.described["pages_url"])
    notice = re.compile(re.escape(NOTICES[service]))
    with a_page(browser, url) as first:
        pages = {}
        for name, path in paths.items():
            page = first.page if not pages else first.page.context.new_page()
            page.goto(path)
            live(page)
            # The report on the previous part is over.
            page.locator("#trouble p").first.wait_for(state="detached")
            pages[name] = page
        headings = {name: page.locator("main h1").inner_text() for name, page in pages.items()}
        grid = first.page.locator("#grid .c").count()

        with stop_service(system, service):
            began = time.monotonic()
            for name, page in pages.items():
                page.locator("#trouble p", has_text=notice).wait_for()
                shown = page.locator("main h1").inner_text()
                assert shown == headings[name] or name in ("history", "pending"), name
            took = time.monotonic() - began
            measured.note(f"{service} stopped: all seven pages show it after {took:.1f} s")
            assert first.page.locator("#grid .c").count() == grid
            _a_page_that_is_opened_now_shows_it_too(browser, url, paths, notice, service)

        began = time.monotonic()
        for page in pages.values():
            page.locator("#trouble p", has_text=notice).wait_for(state="detached")
        took = time.monotonic() - began
        measured.note(f"{service} back: all seven pages are live after {took:.1f} s")


def _a_page_that_is_opened_now_shows_it_too(
    browser: Any, url: str, paths: dict[str, str], notice: re.Pattern[str], service: str
) -> None:
    with a_page(browser, url, java_script_enabled=False) as late:
        for name, path in paths.items():
            late.page.goto(path)
            text = late.page.locator("body").inner_text()
            if service == "postgres" and name != "overview":
                # What only the ledger knows of one thing is not shown as nothing.
                assert notice.search(text) or "Running pods are not affected" in text, name
                assert not re.search(r"\b0 waiting|No pods are waiting|No GPU nodes", text), name
            else:
                assert notice.search(text), name
        late.expect("503")
