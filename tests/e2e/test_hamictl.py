"""hamictl's verbs on the running system, the explanations of refused pods included."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from hamicommon.k8s.types import Json
from hamictl.__main__ import app
from hamictl.exit_codes import ExitCode
from typer.testing import CliRunner

from tests.e2e.system import System, a_pod, hamictl, slice_of, wait

Ask = Callable[..., str]


@pytest.fixture
def ask(system: System) -> Ask:
    """`ask("get", "pods")` -> standard output; `status`: how it must end."""

    def run(*argv: str, status: int = ExitCode.DONE) -> str:
        done = CliRunner().invoke(app, argv, env={"HAMI_FOLDER": str(system.folder)})
        assert done.exception is None or isinstance(done.exception, SystemExit), done.output
        assert done.exit_code == status, done.output
        return done.stdout

    return run


def complete_terms(system: System, *typed: str) -> list[str]:
    """Return kubectl's completions of these terms."""
    done = subprocess.run(
        [Path(sys.executable).parent / "kubectl_complete-hami", *typed],
        env={**os.environ, "HAMI_FOLDER": str(system.folder), "XDG_CACHE_HOME": str(system.folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.splitlines()


def test_each_verb_answers_about_a_pod_that_runs_and_one_that_waits(
    system: System, ask: Ask
) -> None:
    [pod] = system.run(a_pod("shown", slice_of(4096, 30)))
    assert system.create(a_pod("waiting", slice_of(100_000))).status_code == 201
    system.wait_for_reason("waiting")
    node = pod["spec"]["nodeName"]

    held = json.loads(ask("get", "allocations", "-o", "json"))["items"]
    [share] = held[0]["devices"]
    assert (share["memory_bytes"], share["core_ratio"]) == (4096 * 1024 * 1024, 0.3)
    assert ask("get", "pods", "-n", "default", "-o", "name").split() == [
        "pod/default/shown",
        "pod/default/waiting",
    ]
    assert "shown" in ask("get", "allocations", "--at", "now")
    assert len(json.loads(ask("get", "devices", "--at", "now", "-o", "json"))["items"]) == 12
    ask("get", "allocations", "--at", "2020-01-01")
    decided = ask("get", "decisions", "--since", "10m", "-o", "csv", "--columns", "POD,OUTCOME")
    assert {"shown,placed", "waiting,refused"} <= set(decided.splitlines())
    ask("get", "quotas")

    assert " shown " in ask("who", share["device_uuid"])
    assert " shown " in ask("who", node, "--since", "10m")
    assert "CardInsufficientMemory" in ask("pending")
    ask("explain", "default/waiting", "--exit-code", status=ExitCode.ANSWER_IS_NO)
    assert "what-fits" in ask("sql")

    engine = json.loads(ask("capacity", "--gpumem", "8Gi", "--cores", "30", "-o", "json"))
    answer = json.loads(ask("sql", "what-fits", "memory=8Gi", "cores=30%", "-o", "json"))
    assert engine["count"] == sum(row["fitting_count"] for row in answer["items"])
    assert "missing" not in ask("doctor")
    assert " shown " in ask("describe", "node", node)
    assert "allocated" in ask("describe", "pod/shown")
    ask("describe", "card", "GPU-none", status=ExitCode.NOT_FOUND)
    assert ask("open", "pod", "shown").endswith("/pods/default/shown\n")
    page = f"/cards/{share['device_uuid']}\n"
    index = next(
        row["index"]
        for row in json.loads(ask("get", "devices", "-o", "json"))["items"]
        if row["uuid"] == share["device_uuid"]
    )
    for card in (share["device_uuid"], share["device_uuid"][:-1], f"{node}/{index}"):
        assert ask("open", "card", card).endswith(page)
    assert ask("open", "node", node).endswith(f"/nodes/{node}\n")
    for unknown in (("node", "node-99"), ("card", "GPU-none"), ("card", f"{node}/99"), ("quotas",)):
        assert ask("open", *unknown, status=ExitCode.NOT_FOUND) == ""
    used = json.loads(ask("usage", "pod", "shown", "-o", "json"))["items"]
    assert [(row["pod_name"], row["device_uuid"]) for row in used] == [
        ("shown", share["device_uuid"])
    ]
    assert ask("usage", "card", f"{node}/{index}") == ask("usage", "card", share["device_uuid"])
    ask("usage", "--since", "1h")
    bill = json.loads(ask("showback", "--since", "1m", "-o", "json"))["items"]
    assert {row["kind"] for row in bill} >= {"held", "idle"}
    assert complete_terms(system, "explain", "sh") == ["shown", ":4"]
    assert complete_terms(system, "describe", "pod", "wai") == ["waiting", ":4"]
    ask("capacity", "--gpumem", "90Gi", status=ExitCode.ANSWER_IS_NO)
    ask("sql", "nothing-known", status=ExitCode.NOT_FOUND)
    assert ask("delete", "default/waiting") == "pod/waiting deleted\n"


@pytest.fixture
def hanging(system: System) -> Iterator[None]:
    """The scheduler is stopped within the test; the supervisor has no probe that would end it."""
    pid = system.pid_of("scheduler")
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.usefixtures("hanging")
def test_while_the_scheduler_hangs_every_verb_ends_with_a_sentence(ask: Ask) -> None:
    for argv in (
        ("explain", "anybody"),
        ("capacity", "--gpumem", "1Gi"),
        ("get", "devices"),
        ("get", "allocations"),
        ("drift",),
        ("dead-letters",),
    ):
        ask(*argv, status=ExitCode.UNREACHABLE)
    parts = json.loads(ask("doctor", "-o", "json", status=ExitCode.ANSWER_IS_NO))["items"]
    found = {row["part"]: row for row in parts}
    assert "it hangs or was stopped" in found["scheduler"]["detail"]
    assert found["scheduler"]["next"].endswith("scheduler.log")
    assert (found["agents"]["state"], found["metrics"]["state"]) == ("unknown", "ok")
    overview = ask("open").strip()
    wait(
        lambda: "has done nothing since" in httpx.get(overview).text,
        "the overview to show that the scheduler hangs",
    )


def test_a_trace_goes_over_all_services_to_the_first_kernel(system: System, ask: Ask) -> None:
    system.run(a_pod("drawn", slice_of(1000)))

    def read_drawing() -> str | None:
        shown = ask("trace", "drawn")
        return shown if "first-kernel" in shown else None

    lines = wait(read_drawing, "the first kernel's span").splitlines()

    found = {line.split()[0]: line.split()[-1] for line in lines[2:]}
    assert found["admission"] == "hami-webhook"
    assert found["bind"] == "hami-scheduler"
    assert found["allocate"] == found["first-kernel"] == "hami-node-agent"
    ask("trace", "never-there", status=ExitCode.NOT_FOUND)


EXAMPLES = Path(__file__).parents[2] / "examples"
ONE_SCREEN = 24


def wait_for_explanation(system: System, name: str) -> str:
    """Return the explanation for people, once the decision is written."""

    def read_explanation() -> str | None:
        text = hamictl(system.folder, "explain", name)
        return text if " waits: " in text or " was placed: " in text else None

    return wait(read_explanation, f"{name} to be explained")


@pytest.mark.parametrize(
    ("file", "sentence", "helps"),
    [
        pytest.param(
            "07-too-much.yaml",
            "no card of 12 on 3 nodes has 100000 MiB: the largest has 81920 MiB; ask for less",
            "fits if nvidia.com/gpumem <= 81920 MiB",
            id="memory",
        ),
        pytest.param(
            "08-a-type-nobody-has.yaml",
            "no card of 12 on 3 nodes suits the wanted card types (H200)",
            "fits without the wanted card types (H200)",
            id="type",
        ),
        pytest.param(
            "09-too-many-cards.yaml",
            "no node has 5 cards of NVIDIA: the largest has 4; ask for fewer cards",
            "fits if nvidia.com/gpu <= 4",
            id="count",
        ),
    ],
)
def test_a_refused_pod_of_the_demo_explains_itself_on_one_screen(
    system: System, file: str, sentence: str, helps: str
) -> None:
    pod = yaml.safe_load((EXAMPLES / file).read_text())
    name = pod["metadata"]["name"]
    assert system.create(pod).status_code == 201
    system.wait_for_reason(name)

    screen = wait_for_explanation(system, name)

    assert screen.startswith(f"default/{name} waits: {sentence}")
    assert f"  - {helps}" in screen
    assert all(f"node-{number}" in screen for number in range(3))
    assert len(screen.splitlines()) <= ONE_SCREEN

    def is_published() -> bool:
        return any(
            reason == "FilteringFailed" and message.startswith(sentence)
            for reason, message in system.events(name)
        )

    wait(is_published, "the event with the plain sentence", why=lambda: str(system.events(name)))


def test_the_pod_that_holds_what_another_wants_is_named(system: System) -> None:
    holders = [a_pod(f"holder-{n}", slice_of(70_000)) for n in range(12)]
    for holder in holders:
        assert system.create(holder).status_code == 201
    for holder in holders:
        system.wait_for_phase(holder["metadata"]["name"], "Running", timeout_s=90)
    assert system.create(a_pod("late", slice_of(30_000))).status_code == 201
    system.wait_for_reason("late")
    wait_for_explanation(system, "late")

    answer = json.loads(hamictl(system.folder, "explain", "late", "-o", "json"))

    ends = [change for change in answer["counterfactuals"] if change["kind"] == "pods-end"]
    assert ends
    named = ends[0]["pods"][0].removeprefix("default/")
    system.delete(named)
    # The explanation is true: the pod that was named ends, and the other one runs.
    system.wait_for_phase("late", "Running", timeout_s=60)


def test_of_a_pod_of_another_scheduler_it_explains_that_it_never_came(system: System) -> None:
    pod: Json = a_pod("elsewhere", slice_of(1000))
    pod["spec"]["schedulerName"] = "somebody-else"
    assert system.create(pod).status_code == 201

    screen = hamictl(system.folder, "explain", "elsewhere")

    assert "was never decided on: the pod waits for scheduler somebody-else" in screen
