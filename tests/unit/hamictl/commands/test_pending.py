"""`hamictl pending` with the pods that no decision is recorded about."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from hamicommon.errors import Unavailable
from hamictl.__main__ import app
from hamictl.commands import named
from hamictl.questions import QuestionAnswer
from hamictl.scheduler_client import SchedulerClient
from typer.testing import CliRunner, Result

REFUSED = {
    "namespace": "nlp",
    "pod_name": "by-limits",
    "pod_uid": "uid-l",
    "last_at": "2026-11-26T20:00:00Z",
    "reason_code": "CardInsufficientMemory",
    "summary": "no card has 88 GiB",
}
BY_CLAIM = {
    "namespace": "default",
    "pod_name": "by-claim",
    "pod_uid": "uid-c",
    "since_at": "2026-11-26T20:00:00Z",
    "card_count": 1,
    "memory_bytes": 4 * 1024**3,
    "memory_ratio": None,
    "core_ratio": 0.3,
    "reason_code": "ResourceClaims",
    "summary": "kube-scheduler: 1 cannot allocate all claims",
}
Ask = Callable[..., Result]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ask:
    """Runs the verb; `scheduler` is what the scheduler answers."""

    def answer(name: str, _parameters: Mapping[str, object]) -> QuestionAnswer:
        assert name == "waiting-pods"
        return QuestionAnswer(
            question=name, title="", as_of="now", rows=[REFUSED], unknown=frozenset(), complete=True
        )

    def invoke(*arguments: str, scheduler: httpx.Response | Exception) -> Result:
        async def send(_self: SchedulerClient, *asked: object, **_how: object) -> httpx.Response:
            assert asked == ("GET", "/v1/undecided-pods")
            if isinstance(scheduler, Exception):
                raise scheduler
            return scheduler

        monkeypatch.setattr(SchedulerClient, "_send", send)
        return CliRunner().invoke(
            app,
            ["pending", *arguments],
            env={"HAMI_SCHEDULER_URL": "http://scheduler:9444", "HAMI_FOLDER": str(tmp_path)},
        )

    monkeypatch.setattr(named, "ask", answer)
    return invoke


def listing(*rows: Mapping[str, Any]) -> httpx.Response:
    return httpx.Response(200, json={"items": list(rows)})


def names(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [row["pod_name"] for row in json.loads(result.stdout)["items"]]


def test_they_stand_below_those_by_limits_with_kube_schedulers_reason(ask: Ask) -> None:
    result = ask(scheduler=listing(BY_CLAIM))

    assert result.exit_code == 0, result.output
    assert "kube-scheduler: 1 cannot allocate all claims" in " ".join(result.stdout.split())
    assert "2 waiting: CardInsufficientMemory 1 · ResourceClaims 1" in result.stderr
    assert names(ask("-o", "json", scheduler=listing(BY_CLAIM))) == ["by-limits", "by-claim"]


@pytest.mark.parametrize(("at", "is_late"), [("20:09", False), ("20:12", True)])
def test_a_pod_that_kube_scheduler_does_not_ask_about_stays_and_is_pointed_out(
    ask: Ask, at: str, is_late: bool
) -> None:
    result = ask("--at", f"2026-11-26T{at}Z", scheduler=AssertionError("it was asked"))

    assert "by-limits" in result.stdout
    late = "kube-scheduler has not asked about 1 of them for 12 minutes or more; `hamictl doctor`"
    assert (late in result.stderr) is is_late


def test_a_pod_that_the_ledger_has_refused_is_listed_once(ask: Ask) -> None:
    same = {**BY_CLAIM, "pod_uid": "uid-l"}

    assert names(ask("-o", "json", scheduler=listing(same))) == ["by-limits"]


def test_the_scheduler_is_not_asked_about_the_past_and_its_answer_is_of_the_reason(
    ask: Ask,
) -> None:
    never = AssertionError("it was asked")
    reason = ("--reason", "CardInsufficientMemory")

    assert names(ask("-o", "json", "--at", "1h", scheduler=never)) == ["by-limits"]
    assert names(ask("-o", "json", *reason, scheduler=listing(BY_CLAIM))) == ["by-limits"]


def test_a_scheduler_of_an_older_version_has_none(ask: Ask) -> None:
    older = httpx.Response(404, text='{"detail":"Not Found"}')

    assert names(ask("-o", "json", scheduler=older)) == ["by-limits"]
    assert "not listed" not in ask(scheduler=older).stderr


def test_a_scheduler_that_is_away_is_a_note_beside_the_others(ask: Ask) -> None:
    result = ask("-o", "json", scheduler=Unavailable("scheduler does not answer"))

    assert names(result) == ["by-limits"]
    assert (
        "pods that the scheduler was never asked about are missing from the list: "
        "scheduler does not answer" in " ".join(result.stderr.split())
    )
