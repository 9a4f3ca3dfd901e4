"""`hamictl lint`: files of people, lines of programs, a dump of a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hamictl.__main__ import app
from hamictl.exit_codes import ExitCode
from typer.testing import CliRunner, Result

from tests.unit.hamicommon import recorded
from tests.unit.hamicommon.simulation.objects import node

GOOD = """
kind: Pod
metadata: {name: good}
spec: {containers: [{name: c, resources: {limits: {nvidia.com/gpu: 1, nvidia.com/gpumem: 3000}}}]}
"""
BAD = GOOD.replace("good", "bad").replace("3000", "16Gi")


def lint(*arguments: object, stdin: str = "") -> Result:
    return CliRunner().invoke(app, ["lint", *map(str, arguments)], input=stdin)


def test_a_good_pod_gets_what_would_be_filled_in() -> None:
    result = lint("-f", "-", stdin=GOOD)

    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        "default/good would be admitted",
        '  add /spec/schedulerName "hami-scheduler"',
    ]


def test_a_pod_that_would_be_refused_ends_with_6_and_the_others_are_answered_too() -> None:
    result = lint("-f", "-", stdin=f"{BAD}---{GOOD}")

    assert result.exit_code == 6
    assert "default/bad would be refused: container 'c': nvidia.com/gpumem is 16Gi" in result.output
    assert "(the unit is MiB: write 16384)" in result.output
    assert "default/good would be admitted" in result.output


def test_a_pod_that_asks_for_nothing_is_admitted() -> None:
    pod = "kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}"

    assert lint("-f", "-", stdin=pod).output == "default/p would be admitted: it asks for no card\n"


QUOTA = """
kind: ResourceQuota
metadata: {name: q, namespace: team-a}
spec: {hard: {KEY: 20480, cpu: 4}}
"""


def test_a_quota_that_would_limit_nothing_is_refused() -> None:
    result = lint("-f", "-", stdin=QUOTA.replace("KEY", "nvidia.com/gpumem"))

    assert result.exit_code == 6
    assert result.output == (
        "ResourceQuota team-a/q would be refused: nvidia.com/gpumem: 20480 limits nothing: write "
        "limits.nvidia.com/gpumem: 20480\n"
    )


def test_a_quota_that_limits_is_admitted_and_other_objects_are_named() -> None:
    text = QUOTA.replace("KEY", "limits.nvidia.com/gpumem")

    result = lint("-f", "-", stdin=f"{text}---\nkind: Namespace\nmetadata: {{name: team-a}}")

    assert result.exit_code == 0, result.output
    assert "ResourceQuota team-a/q would be admitted\n" in result.output
    assert "Namespace/team-a skipped" in result.output


def test_the_example_is_admitted() -> None:
    example = Path(__file__).parents[4] / "examples" / "quota.yaml"

    assert lint("-f", example).exit_code == 0


def test_that_types_were_not_compared_with_cards_is_reported() -> None:
    annotated = GOOD.replace("{name: good}", "{name: p, annotations: {nvidia.com/use-gputype: A}}")

    assert "were not checked" in lint("-f", "-", stdin=annotated).output
    assert "were not checked" not in lint("-f", "-", stdin=GOOD).output


@pytest.mark.parametrize(
    ("policy", "code", "expected"),
    [
        ("deny", 6, "would be refused: no node"),
        ("warn", 0, "warning: no node can take a pod that asks for 1 NVIDIA card with 90000 MiB:"),
        ("off", 0, "add"),
    ],
)
def test_what_no_card_can_take_is_answered_as_the_webhook_is_configured(
    policy: str, code: int, expected: str, tmp_path: Path
) -> None:
    dump = tmp_path / "dump.json"
    dump.write_text(json.dumps({"kind": "List", "items": [node("n1", {})]}))
    asking = GOOD.replace("3000", "90000")

    result = lint("--cluster", dump, "--never-fits", policy, "-f", "-", stdin=asking)

    assert result.exit_code == code, result.output
    assert expected in result.output
    assert ("no node" in result.output) is (policy != "off")
    assert ("fits if nvidia.com/gpumem <= " in result.output) is (policy != "off")
    assert "warning" not in lint("--cluster", dump, "-f", "-", stdin=GOOD).output


def test_pods_of_the_default_scheduler_may_be_left_to_it() -> None:
    other = GOOD.replace("{containers", "{schedulerName: default-scheduler, containers")

    assert "replace /spec/schedulerName" in lint("-f", "-", stdin=other).output
    left = lint("--no-force-overwrite-default-scheduler", "-f", "-", stdin=other).output
    assert left == (
        "default/good would be admitted: pod already has different scheduler assigned\n"
    )


def test_json_has_the_form_of_lines() -> None:
    result = lint("-f", "-", "-o", "json", stdin=GOOD)

    [item] = json.loads(result.output)["items"]
    assert item == {
        "name": "default/good",
        "allowed": True,
        "message": "",
        "warnings": [],
        "patch": [{"op": "add", "path": "/spec/schedulerName", "value": "hami-scheduler"}],
    }


def test_lines_are_answered_one_by_one_and_a_bad_line_hinders_no_other() -> None:
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}
    lines = ["nonsense", "[]", '{"name": "x"}', "", json.dumps({"name": "y", "pod": pod})]

    result = lint("--jsonl", stdin="\n".join(lines))

    assert result.exit_code == 0
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert [each["name"] for each in answers] == ["", "", "x", "y"]
    assert [each["allowed"] for each in answers] == [False, False, False, True]
    assert answers[0]["message"].startswith("line 1: not JSON")
    assert answers[2]["message"].startswith("line 3: pod is absent: expected a line")
    assert all(set(each) == {"name", "allowed", "message", "warnings", "patch"} for each in answers)


def test_lines_recorded_from_hami_get_hamis_verdicts() -> None:
    lines = recorded.lines("admission.jsonl")
    given = [json.dumps({"name": line["name"], "pod": line["pod"]}) for line in lines]

    result = lint("--jsonl", "--enable-ascend", "--enable-iluvatar", stdin="\n".join(given))

    answers = [json.loads(line) for line in result.stdout.splitlines()]
    differ = {
        ours["name"]
        for ours, theirs in zip(answers, lines, strict=True)
        if ours["allowed"] != theirs["allowed"]
    }
    # HAMi drops the request in silence; a unit of bytes where MiB are meant is refused (point 3).
    assert {name for name in differ if "16Gi" not in name} == set()
    assert len(differ) == sum("16Gi" in line["name"] for line in lines)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "-f is required, or --jsonl"),
        (("-f", "/none"), "/none does not exist"),
        (("-f", "/"), "/ is a folder: use a file"),
        (
            ("-f", "-", "--device-config", "/none"),
            "/none: not a readable YAML file: No such file or directory",
        ),
        (("-f", "-", "--node-policy", "x"), "use binpack, spread or fragmentation"),
    ],
    ids=["nothing", "no file", "a folder", "no configuration", "no policy"],
)
def test_mistakes_are_one_sentence_with_the_path_once(
    arguments: tuple[str, ...], expected: str
) -> None:
    result = lint(*arguments, stdin=GOOD)

    about_a_file = "/" in arguments or "/none" in arguments
    assert result.exit_code == (ExitCode.FAILED if about_a_file else ExitCode.WRONG_USAGE)
    assert expected in result.stderr
    assert "Errno" not in result.stderr
    assert len(result.stderr.splitlines()) == 1


QUEUED = """
kind: KIND
metadata: {name: train, labels: {kueue.x-k8s.io/queue-name: gpu}}
spec:
  replicatedJobs: [{name: w, template: {spec: {template: {spec: {containers: CONTAINERS}}}}}]
  template: {spec: {containers: CONTAINERS}}
"""


@pytest.mark.parametrize("kind", ["Job", "JobSet"])
@pytest.mark.parametrize(
    ("limits", "line"),
    [
        ("nvidia.com/gpu: 1, nvidia.com/gpumem: 9", "{} is counted rightly by its queue"),
        ("nvidia.com/gpumem: 9", "{} is counted wrongly by its queue"),
    ],
)
def test_a_job_of_a_queue_is_judged_beside_its_pods(kind: str, limits: str, line: str) -> None:
    containers = f"[{{name: c, resources: {{limits: {{{limits}}}}}}}]"
    result = lint("-f", "-", stdin=QUEUED.replace("CONTAINERS", containers).replace("KIND", kind))

    assert result.exit_code == 0, result.output
    assert line.format(f"{kind} default/train") in result.output
    assert ("the queue counts 0 of it" in result.output) == ("wrongly" in line)
    assert "skipped" not in result.output
    assert ("default/train-0 would be admitted" in result.output) == (kind == "Job")
