"""Output of each verb to the letter: `golden/*.txt` has commands and their expected answers.

A new command is a new line `$ hamictl ...` there; `HAMI_WRITE_GOLDEN=1` writes the answers into the
files, to be read before they are committed.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, NoReturn, cast
from unittest.mock import AsyncMock

import pytest
from fastapi import FastAPI
from hami_metrics.domain.redaction import ShowOwners
from hami_metrics.questions.asking import Asking, LocalViewers, Seal
from hami_metrics.questions.routes import bill_routes, question_routes
from hami_metrics.routes import create_app
from hami_scheduler.adapters.postgres.queries import PostgresQueries
from hami_scheduler.api.app import operator_routes
from hami_scheduler.api.explain import Explainer
from hami_scheduler.api.http import answer_errors
from hamicommon.device_config import DeviceConfig
from hamicommon.errors import NotFound
from hamicommon.ledger.database import open_database
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.process.http_server import serving
from hamicommon.settings import PostgresSettings
from hamicommon.vendors.registry import Vendors
from hamictl.__main__ import COMMANDS, app
from hamictl.exit_codes import ExitCode
from prometheus_client import CollectorRegistry
from pydantic import SecretStr
from typer.testing import CliRunner

from tests.integration.hamictl import small_ledger
from tests.servers import Databases, migrate
from tests.waiting import PATIENCE_S

Environment = dict[str, str | None]
GOLDEN = Path(__file__).parent / "golden"
REPOSITORY = Path(__file__).parents[3]
TRIES = 30
WRITE = "HAMI_WRITE_GOLDEN" in os.environ
SHOWN_IN_OTHER_TESTS = {
    **dict.fromkeys(("up", "down", "apply", "delete", "doctor"), "tests/e2e"),
    "explain": "tests/unit/hamictl/view/test_explanation.py",
    "preempt": "tests/e2e/test_preemption_preview.py",
    "kueue": "tests/unit/hamictl/commands/test_kueue.py",
    "capacity": "tests/e2e/test_hamictl.py",
    "dead-letters": "tests/integration/bus",
    "simulate": "tests/unit/hamictl/commands/test_simulate.py",
    "scale": "tests/unit/hamictl/commands/test_scale.py",
    "adopt": "tests/e2e/placement/test_adoption.py",
    "replay": "tests/unit/hamictl/replay/test_replay.py",
    "dump": "tests/integration/hamictl/test_replay_from_ledger.py",
    "db": "tests/integration/db/migrations/test_db_commands.py",
    "completion": "tests/unit/hamictl/test_completion.py",
    "config": "tests/unit/hamictl/commands/test_config.py",
}
"""Verbs that start, change or simulate something, and where they are shown."""


PAGES = ("/", "/pods/nlp/train-2", "/cards/GPU-a0", "/nodes/n1")


@pytest.fixture(scope="module")
def environment(
    databases: Databases, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Environment]:
    """Variables that lead to the services' own routes over the small ledger."""
    with databases.database("migrated", fill=migrate) as dsn:
        asyncio.run(small_ledger.fill(dsn))
        urls: dict[str, str] = {}
        ready, over = Event(), Event()
        thread = Thread(target=lambda: asyncio.run(_serve(dsn, urls, ready, over)), daemon=True)
        thread.start()
        assert ready.wait(PATIENCE_S)
        yield {
            "HAMI_FOLDER": str(tmp_path_factory.mktemp("no-system")),
            "HAMI_METRICS_URL": urls["metrics"],
            "HAMI_SCHEDULER_URL": urls["scheduler"],
            "HAMI_PAGES_URL": urls["pages"],
            "HAMI_POSTGRES_DSN": dsn,
            "HAMICTL_UTC": "1",
            "COLUMNS": "80",
            "KUBECONFIG": None,
        }
        over.set()
        thread.join(PATIENCE_S)


class NoPods:
    """An API server that has no pod any more."""

    async def get(self, namespace: str, name: str) -> NoReturn:
        raise NotFound(f"pod {namespace}/{name}")


def _explainer(queries: PostgresQueries) -> Explainer:
    vendors = Vendors.from_config(DeviceConfig())
    return Explainer(
        queries=queries,
        pods=cast(Any, NoPods()),
        known_pods={},
        vendors=vendors,
        scheduler_name="hami-scheduler",
        recorder=cast(Any, SimpleNamespace(dropped=0, waiting=0)),
        new_view=lambda: ClusterView(vendors.rules),
        silent=frozenset,
        cordoned=frozenset,
    )


async def _serve(dsn: str, urls: dict[str, str], ready: Event, over: Event) -> None:
    async with AsyncExitStack() as stack:
        settings = PostgresSettings(dsn=SecretStr(dsn))
        ledger = await stack.enter_async_context(open_database(settings, application="test"))
        viewers = LocalViewers()
        asking = Asking(ledger, viewers, Seal("secret"), ShowOwners.NAMES)
        routers = [question_routes(asking, viewers), bill_routes(asking, viewers, None)]
        scheduler = FastAPI()
        queries = PostgresQueries(ledger)
        service = SimpleNamespace(
            queries=queries,
            explainer=_explainer(queries),
            undecided=SimpleNamespace(waiting=AsyncMock(return_value=[])),
            vain_settings=SimpleNamespace(rows=list),
        )
        scheduler.include_router(operator_routes(cast(Any, service)))
        answer_errors(scheduler)
        pages = FastAPI()
        for path in PAGES:
            pages.add_api_route(path, lambda: "a page")
        for name, served in (
            ("pages", pages),
            ("metrics", create_app(CollectorRegistry(), list, None, routers)),
            ("scheduler", scheduler),
        ):
            port = await stack.enter_async_context(serving(served, "127.0.0.1:0"))
            urls[name] = f"http://127.0.0.1:{port}"
        ready.set()
        await asyncio.to_thread(over.wait)


def commands_of(text: str) -> list[str]:
    return [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]


def transcript(command: str, environment: Environment) -> str:
    """The command as it was typed, and everything that it printed."""
    argv = shlex.split(command)[1:]
    for _ in range(TRIES):
        done = CliRunner().invoke(app, argv, env=environment, prog_name="hamictl")
        # On a machine that is busy a statement may meet its time-out: it is asked again.
        if done.exit_code != ExitCode.UNREACHABLE:
            break
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    complaints = "".join(f"! {line}\n" for line in done.stderr.splitlines())
    status = f"[status {done.exit_code}]\n" if done.exit_code else ""
    shown = f"$ {command}\n{_steady(done.stdout)}{_steady(complaints)}{status}\n"
    return shown.replace(str(environment["HAMI_PAGES_URL"]), "http://pages:9398")


def _steady(text: str) -> str:
    """Without the moment of asking and the versions of the day."""
    text = re.sub(r"""("?asOf"?: ["'])[^"'\n]+""", r"\1(now)", text)
    text = re.sub(r'("sick_s": )[\d.]+', r"\1(until now)", text)
    text = re.sub(r"\bAGE +", "AGE  ", re.sub(r"\b\d+d  +", "(age)  ", text))
    text = re.sub(r"hamictl \d\S* \(Python \S+\)", "hamictl (version) (Python (version))", text)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*.txt")), ids=lambda file: file.stem)
def test_a_verb_prints_what_its_file_has(
    file: Path, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    wanted = file.read_text()
    commands = commands_of(wanted)
    assert commands

    found = "".join(transcript(command, environment) for command in commands)

    if WRITE:
        file.write_text(found)
    assert found == wanted


def test_every_verb_has_a_file_or_is_shown_elsewhere() -> None:
    shown = {
        command.split()[1]
        for file in GOLDEN.glob("*.txt")
        for command in commands_of(file.read_text())
    }

    assert shown.isdisjoint(SHOWN_IN_OTHER_TESTS)
    assert shown | set(SHOWN_IN_OTHER_TESTS) == set(COMMANDS)
    assert all((REPOSITORY / path).exists() for path in SHOWN_IN_OTHER_TESTS.values())
