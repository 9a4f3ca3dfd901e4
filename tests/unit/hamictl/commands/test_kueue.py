"""`hamictl kueue setup` on files."""

import json
from pathlib import Path

import pytest
import yaml
from hamictl.__main__ import app
from typer.testing import CliRunner, Result

from tests.unit.hamicommon.simulation.objects import node


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    made = node("n1", {})
    made["status"]["allocatable"] |= {"cpu": "4", "memory": "8Gi"}
    file = tmp_path / "dump.json"
    file.write_text(json.dumps({"kind": "List", "items": [made]}))
    return file


def setup(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["kueue", "setup", *map(str, arguments)])


def test_the_output_is_for_kubectl_and_begins_with_settings_as_comments(dump: Path) -> None:
    result = setup("--cluster", dump, "--queue", "q", "-n", "team-a", "--policy")

    assert result.exit_code == 0, result.output
    objects = list(yaml.safe_load_all(result.output))
    assert [(each["kind"], each["metadata"]["name"]) for each in objects] == [
        ("ResourceFlavor", "nvidia-a10"),
        ("ClusterQueue", "gpu"),
        ("LocalQueue", "q"),
        ("ValidatingAdmissionPolicy", "hami-queued-jobs"),
        ("ValidatingAdmissionPolicyBinding", "hami-queued-jobs"),
    ]
    comments = [line[2:] for line in result.output.splitlines() if line.startswith("# ")]
    written = json.loads(setup("--cluster", dump, "-o", "json").output)
    assert yaml.safe_load("\n".join(comments[1:])) == written["configuration"]
    assert [each["kind"] for each in written["objects"]] == [
        "ResourceFlavor",
        "ClusterQueue",
        "LocalQueue",
    ]


def test_a_dump_without_nodes_is_refused(dump: Path) -> None:
    dump.write_text("[]")
    result = setup("--cluster", dump)
    assert result.exit_code == 1
    assert "has no Node" in result.output
