"""`hamictl simulate` on files and on standard input."""

import json
from pathlib import Path

import pytest
from hamicommon.k8s.types import Json
from hamictl.__main__ import app
from hamictl.exit_codes import ExitCode
from typer.testing import CliRunner, Result

from tests.unit.hamicommon.simulation.objects import asking, gpus, node, placed_pod

POD = """
kind: Pod
metadata: {name: small}
spec: {containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 3000}}}]}
---
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  template:
    spec: {containers: [{name: c, resources: {limits: {nvidia.com/gpumem: 4000}}}]}
---
kind: Service
metadata: {name: web}
"""


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    items = [node("n1", {}), node("n2"), placed_pod("GPU-n1-0,NVIDIA,500,0:;", on="n1")]
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({"kind": "List", "items": items}))
    return path


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    path = tmp_path / "pod.yaml"
    path.write_text(POD)
    return path


def simulate(*arguments: object, stdin: str = "") -> Result:
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)], input=stdin)


def test_people_get_a_table_and_a_sentence_per_pod(dump: Path, manifest: Path) -> None:
    result = simulate("--cluster", dump, "-f", manifest)

    assert result.exit_code == 0, result.output
    assert "Service/web skipped" in result.output
    assert "default/small would go to n1: n1 is the only one of 2 nodes that fits" in result.output
    assert "default/web-0 would go to n1:" in result.output
    assert "default/web-1 fits nowhere: no card of 1 on 1 node has 4000 MiB free" in result.output
    assert "  fits if nvidia.com/gpumem <= 500 MiB" in result.output


def test_pods_whose_end_would_help_are_named(tmp_path: Path, manifest: Path) -> None:
    items = [node("n1", {}), placed_pod("GPU-n1-0,NVIDIA,6000,0:;", on="n1")]
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(items))
    result = simulate("--cluster", path, "-f", manifest)
    assert "  fits when pod team/old on n1 ends" in result.output


def test_programs_get_the_same_as_json(dump: Path, manifest: Path) -> None:
    result = simulate("--cluster", dump, "-f", manifest, "-o", "json")
    items = json.loads(result.stdout[result.stdout.index("{") :])["items"]
    assert [(item["name"], item["chosen"]) for item in items] == [
        ("small", "n1"),
        ("web-0", "n1"),
        ("web-1", None),
    ]


def test_the_dump_may_come_from_standard_input(dump: Path, manifest: Path) -> None:
    result = simulate("--cluster", "-", "-f", manifest, stdin=dump.read_text())
    assert "default/small would go to n1" in result.output


def test_default_policies_can_be_changed(tmp_path: Path, manifest: Path) -> None:
    items = [node("n1", {}, {}), node("n2", {}), placed_pod("GPU-n1-0,NVIDIA,500,0:;", on="n1")]
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(items))
    chosen = {
        policy: simulate("--cluster", path, "-f", manifest, "--node-policy", policy).output
        for policy in ("binpack", "spread")
    }
    assert "default/small would go to n1" in chosen["binpack"]
    assert "default/small would go to n2" in chosen["spread"]


def test_cordoned_nodes_are_left_out_and_named(tmp_path: Path, manifest: Path) -> None:
    closed = node("n1", {}, {}) | {"spec": {"unschedulable": True}}
    path = tmp_path / "dump.json"
    path.write_text(json.dumps([closed, node("n2", {})]))
    result = simulate("--cluster", path, "-f", manifest)
    assert "skipped: node n1 is cordoned: kube-scheduler offers it to no pod" in result.output
    assert "default/small would go to n2: n2 is the only one of 1 node" in result.output


def test_a_pod_of_the_dump_may_be_asked_for_again(tmp_path: Path) -> None:
    before = placed_pod("GPU-n1-0,NVIDIA,6000,0:;", on="n1")
    before["metadata"]["uid"] = "u"
    path = tmp_path / "dump.json"
    path.write_text(json.dumps([node("n1", {}), before]))
    pod = tmp_path / "pod.json"
    pod.write_text(json.dumps(asking(gpus(1, 5000))))
    assert "default/new would go to n1" in simulate("--cluster", path, "-f", pod).output


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(
            asking(gpus(1, "16Gi")),
            "default/new can't be placed anywhere: denied at admission: container 'c0': "
            "nvidia.com/gpumem is 16Gi",
            id="bytes",
        ),
        pytest.param(
            asking(gpus(1, 500), annotations={"hami.io/gpu-scheduler-policy": "binpak"}),
            "warning: annotation hami.io/gpu-scheduler-policy has 'binpak'",
            id="a mistyped policy",
        ),
        pytest.param(
            {"kind": "Pod", "metadata": {"name": "new"}, "spec": {}},
            "default/new can't be placed anywhere: denied at admission: the pod has no containers",
            id="no containers",
        ),
        pytest.param(asking({}), "default/new: it asks for no card", id="no card"),
    ],
)
def test_what_is_odd_about_a_pod_is_one_sentence(
    tmp_path: Path, dump: Path, pod: Json, expected: str
) -> None:
    path = tmp_path / "pod.json"
    path.write_text(json.dumps(pod))
    result = simulate("--cluster", dump, "-f", path)
    assert result.exit_code == 0
    assert expected in " ".join(result.output.split())


def case(name: str, pod: Json) -> str:
    return json.dumps({"name": name, "in": {"nodes": [node("n", {})], "pods": [], "pod": pod}})


def test_a_batch_is_answered_line_by_line_in_order() -> None:
    lines = [case("a", asking(gpus(1, 1))), "{", "", case("b", asking(gpus(9, 1)))]
    result = simulate("--jsonl", stdin="\n".join(lines))

    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(a["name"], a["chosen"]) for a in answers] == [("a", "n"), ("", None), ("b", None)]
    assert answers[1]["error"].startswith("line 2: not JSON")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("{", "is neither JSON nor YAML", id="cut off"),
        pytest.param("3", "is not a List of nodes and pods", id="a number"),
        pytest.param('{"items": [3]}', "is not a List of nodes and pods", id="no objects"),
        pytest.param('{"items": []}', "has no Node", id="nothing in it"),
        pytest.param('[{"kind": "Node"}]', "without metadata.name", id="a nameless node"),
        pytest.param(
            '[{"kind": "Node", "metadata": {"name": "n"}}, {"kind": "Pod", "status": 3}]',
            "placed pod 0: status is 3: expected an object",
            id="a misshapen pod",
        ),
    ],
)
def test_a_dump_that_is_none_is_refused_in_one_sentence(
    tmp_path: Path, manifest: Path, text: str, expected: str
) -> None:
    path = tmp_path / "dump.json"
    path.write_text(text)
    result = simulate("--cluster", path, "-f", manifest)
    assert result.exit_code == 1
    assert expected in result.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param((), "--cluster and -f are required, or --jsonl", id="nothing"),
        pytest.param(("--cluster", "/none", "-f", "/none"), "/none does not exist", id="no file"),
        pytest.param(("--jsonl", "--device-config", "/none"), "/none", id="no config"),
        pytest.param(
            ("--jsonl", "--node-policy", "x"),
            "use binpack, spread or fragmentation",
            id="node",
        ),
        pytest.param(("--jsonl", "--gpu-policy", "numa,x"), "--gpu-policy has 'x'", id="card"),
    ],
)
def test_mistakes_are_one_sentence(arguments: tuple[str, ...], expected: str) -> None:
    result = simulate(*arguments)
    about_a_file = "/" in arguments or "/none" in arguments
    assert result.exit_code == (ExitCode.FAILED if about_a_file else ExitCode.WRONG_USAGE)
    assert expected in result.stderr
