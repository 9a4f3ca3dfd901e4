"""`hamictl scale plan` on files."""

import json
from pathlib import Path

import pytest
from hamictl.__main__ import app
from hamictl.exit_codes import ExitCode
from typer.testing import CliRunner, Result

from tests.unit.hamicommon.simulation.objects import asking, gpus, node

TYPES = "[{name: pool, price: 2.5, cards: [{count: 2, type: NVIDIA A10, memory: 8000}]}]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    waiting = asking(gpus(1, 6000))
    waiting["metadata"]["name"] = "train"
    dump = {"kind": "List", "items": [node("n1", {}), waiting]}
    (tmp_path / "dump.json").write_text(json.dumps(dump))
    (tmp_path / "types.yaml").write_text(TYPES)
    for name, memory in (("web", 5000), ("large", 9000)):
        limits = f"limits: {{nvidia.com/gpumem: {memory}}}"
        (tmp_path / f"{name}.yaml").write_text(
            f"kind: Pod\nmetadata: {{name: {name}}}\n"
            f"spec: {{containers: [{{name: c, resources: {{{limits}}}}}]}}\n"
        )
    return tmp_path


def plan(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["scale", "plan", *map(str, arguments)])


def test_waiting_and_new_pods_are_planned_on_existing_and_new_nodes(folder: Path) -> None:
    asked = ("--cluster", folder / "dump.json", "--types", folder / "types.yaml")
    result = plan(*asked, "-f", folder / "web.yaml")

    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        "1 pod (default/train) fits on the nodes that exist",
        "1 node of pool for 1 pod (default/web)",
    ]
    written = json.loads(plan(*asked, "-f", folder / "web.yaml", "-o", "json").output)
    assert written == {
        "nodes": [{"type": "pool", "count": 1, "price": 2.5, "pods": ["default/web"]}],
        "placed": [{"pod": "default/train", "node": "n1"}],
        "refused": [],
        "problems": [],
    }


def test_a_pod_that_fits_no_type_ends_with_the_status_of_a_no(folder: Path) -> None:
    asked = ("--cluster", folder / "dump.json", "--types", folder / "types.yaml")
    result = plan(*asked, "-f", folder / "large.yaml")

    assert result.exit_code == ExitCode.ANSWER_IS_NO
    assert "1 pod (default/large) fits no type: no card of 2 on 1 node has 9000 MiB" in (
        result.output
    )


def test_a_dump_without_nodes_needs_types(folder: Path) -> None:
    (folder / "dump.json").write_text("[]")
    result = plan("--cluster", folder / "dump.json")
    assert result.exit_code == 1
    assert "has no Node" in result.output
