"""Start and stop of any server: errors name what happened, nothing is left running."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hamilocal.supervisor.plan import NotReadyError, ServerError, ServerPlan
from hamilocal.supervisor.ports import free_port

from tests.processes import start


def a_plan(tmp_path: Path, program: str) -> ServerPlan:
    def never() -> None:
        raise NotReadyError("nobody home")

    return ServerPlan(
        name="thing",
        argv=(sys.executable, "-c", program),
        cwd=tmp_path,
        log_path=tmp_path / "thing.log",
        url="",
        port=1,
        probe=never,
    )


def test_a_server_that_ends_at_once_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    plan = a_plan(tmp_path, "import sys; sys.exit('no such luck')")
    with pytest.raises(ServerError, match=r"thing ended with exit status 1.*no such luck"):
        start(plan)


def test_a_server_that_never_answers_is_killed_after_its_time(tmp_path: Path) -> None:
    plan = replace(
        a_plan(tmp_path, "import signal; signal.pause()"), start_timeout_s=0.3, prefix=("env",)
    )
    with pytest.raises(ServerError, match=r"not ready within 0.3 s \(nobody home\)"):
        start(plan)


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    plan = replace(a_plan(tmp_path, ""), argv=("/no/such/program",))
    with pytest.raises(ServerError, match=r"cannot start thing: .*/no/such/program"):
        start(plan)


def test_ports_are_given_once() -> None:
    ports = [free_port() for _ in range(100)]
    assert len(set(ports)) == 100
    assert all(20000 <= port <= 32000 for port in ports)
