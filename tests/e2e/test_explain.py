"""Every refused pod of the demo explains itself on one screen; so does one that never came."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hamicommon.k8s.types import Json

from tests.e2e.system import System, a_pod, hamictl, slice_of, wait

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "examples"
ONE_SCREEN = 24


def explained(system: System, name: str) -> str:
    """Return the explanation for people, once the decision is written."""

    def written() -> str | None:
        text = hamictl(system.folder, "explain", name)
        return text if " waits: " in text or " was placed: " in text else None

    return wait(written, f"{name} to be explained")


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

    screen = explained(system, name)

    assert screen.startswith(f"default/{name} waits: {sentence}")
    assert f"  - {helps}" in screen
    assert all(f"node-{number}" in screen for number in range(3))
    assert len(screen.splitlines()) <= ONE_SCREEN

    def published() -> bool:
        return any(
            reason == "FilteringFailed" and message.startswith(sentence)
            for reason, message in system.events(name)
        )

    wait(published, "the event with the plain sentence", why=lambda: str(system.events(name)))


def test_the_pod_that_holds_what_another_wants_is_named(system: System) -> None:
    holders = [a_pod(f"holder-{n}", slice_of(70_000)) for n in range(12)]
    for holder in holders:
        assert system.create(holder).status_code == 201
    for holder in holders:
        system.wait_for_phase(holder["metadata"]["name"], "Running", timeout_s=90)
    assert system.create(a_pod("late", slice_of(30_000))).status_code == 201
    system.wait_for_reason("late")
    explained(system, "late")

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
