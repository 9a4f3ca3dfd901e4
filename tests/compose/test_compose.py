"""The commands of README.md and docs/compose.md work, and lose nothing on the way."""

import re
from typing import Any

import pytest
import yaml

from tests.compose.conftest import ROOT, Compose, wait_until

pytestmark = pytest.mark.slow

README = (ROOT / "README.md").read_text()
PAGE = (ROOT / "docs" / "compose.md").read_text()
LINES = re.findall(r"^\$ (.*docker compose .*?)(?: +#.*)?$", PAGE, re.MULTILINE)
SHORT = re.findall(r"`(docker compose [^`]+)`", README)
LASTING = [
    name
    for file in ("docker-compose.yml", "k8s/compose/emulated.yml")
    for name, service in yaml.safe_load((ROOT / file).read_text())["services"].items()
    if service.get("restart") == "unless-stopped" and "profiles" not in service
]
# Of examples/, on one node of four cards.
RUNNING = {"one-slice", "memory-only", "percentage", "two-cards", "two-containers"}
ONE_SHOT = {"prepare", "kubeconfig", "migrations", "register-webhook"}


def is_up(compose: Compose) -> bool:
    """Every lasting part runs and is healthy, every one-shot part ended well."""
    containers = compose.containers()
    return all(
        containers[name]["State"] == "running" and containers[name]["Health"] in ("healthy", "")
        for name in LASTING
    ) and all(containers[name]["ExitCode"] == 0 for name in ONE_SHOT)


def slices(compose: Compose) -> dict[str, Any]:
    """Pod -> its granted devices, and the allocation's id."""
    return {
        f"{item['namespace']}/{item['pod_name']}": (item["id"], item["devices"])
        for item in compose.hamictl("get allocations")["items"]
    }


@pytest.fixture(scope="module")
def examples(compose: Compose) -> Compose:
    """The README's two lines, typed."""
    assert len(SHORT) == 2
    for line in SHORT:
        done = compose.shell(line)
        assert done.returncode == 0, f"{line}:\n{done.stdout}\n{done.stderr}"
    wait_until(
        "the examples run",
        lambda: (
            {
                name.removeprefix("default/")
                for name, phase in compose.phases().items()
                if phase == "Running"
            }
            >= RUNNING
        ),
    )
    return compose


def test_the_lines_of_the_readme_lead_to_running_slices(examples: Compose) -> None:
    assert is_up(examples)
    assert {f"default/{name}" for name in RUNNING} <= slices(examples).keys()


def test_every_line_of_the_page_succeeds(examples: Compose) -> None:
    assert len(LINES) >= 5
    for line in LINES:
        done = examples.shell(line)
        assert done.returncode == 0, f"{line}:\n{done.stdout}\n{done.stderr}"
    wait_until("every part is healthy", lambda: is_up(examples))


@pytest.mark.parametrize("part", LASTING)
def test_a_restart_of_any_part_is_harmless(examples: Compose, part: str) -> None:
    before = slices(examples)

    examples.run(f"restart {part}")

    wait_until(f"every part is healthy after a restart of {part}", lambda: is_up(examples))
    # With the kubelet its containers end, and start again: the same pods, the same slices.
    wait_until(
        "the pods run",
        lambda: all(examples.phases().get(pod) == "Running" for pod in before),
    )
    assert slices(examples) == before
    place_another(examples)


def place_another(compose: Compose) -> None:
    """A new pod gets a slice and runs; then its slice is free again."""
    pod = yaml.safe_load((ROOT / "examples" / "01-one-slice.yaml").read_text())
    pod["metadata"]["name"] = "another"
    text = yaml.safe_dump(pod)
    apply = f"docker compose exec -T tools hamictl apply -f - <<'POD'\n{text}POD"
    done = compose.shell(apply)
    assert done.returncode == 0, done.stderr
    wait_until("a new pod runs", lambda: compose.phases().get("default/another") == "Running")
    compose.run("exec -T tools hamictl delete another")
    wait_until("it is gone", lambda: "default/another" not in compose.phases())
    wait_until("its slice is free", lambda: "default/another" not in slices(compose))


def test_down_and_up_keep_pods_grants_and_history(examples: Compose) -> None:
    pods, before = examples.phases(), slices(examples)

    examples.run("down --timeout 20")
    examples.run("up --detach")

    wait_until("every part is healthy", lambda: is_up(examples))
    wait_until("the pods are as before", lambda: examples.phases() == pods)
    assert slices(examples) == before
    assert "every rule of the ledger holds" in examples.run("exec -T tools hamictl db check")
