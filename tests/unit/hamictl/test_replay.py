"""`hamictl replay` on files: tables, JSON, a picture, and mistakes."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hamictl.__main__ import app
from typer.testing import CliRunner, Result

NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(
    f"n{number},32000,100000,4,A100\n" for number in range(4)
)
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n" + "".join(
    f"p{number},{1000 * (number % 4)},100,1,{(810, 470, 1000)[number % 3]}\n"
    for number in range(20)
)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    nodes.write_text(NODES)
    pods.write_text(PODS)
    return ("--nodes", str(nodes), "--pods", str(pods))


def replay(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["replay", *arguments])


def test_people_get_the_cards_in_use_and_the_refused_pods(files: tuple[str, ...]) -> None:
    result = replay(*files, "--seeds", "1-2", "--policy", "binpack,fragmentation,fgd")

    assert result.exit_code == 0, result.output
    assert "percent of 16" in result.output
    assert "±" in result.output
    for name in ("binpack", "fragmentation", "fgd"):
        assert name in result.output
    assert "Pods refused" in result.output


def test_programs_get_every_curve(files: tuple[str, ...]) -> None:
    result = replay(*files, "--seeds", "7", "--policy", "spread", "-o", "json")

    found = json.loads(result.output)["policies"]["spread"]
    [run] = found["runs"]
    assert run["seed"] == 7
    assert run["placed"] + sum(run["failed"].values()) == run["arrived"]
    assert run["allocated"] == found["mean"]


def test_the_picture_has_a_line_for_every_policy(files: tuple[str, ...], tmp_path: Path) -> None:
    svg = tmp_path / "curve.svg"
    result = replay(*files, "--policy", "binpack,bestfit", "--picture", str(svg))

    assert result.exit_code == 0, result.output
    root = ElementTree.fromstring(svg.read_text())
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 2


@pytest.fixture
def timed(files: tuple[str, ...], tmp_path: Path) -> tuple[str, ...]:
    first, *rows = PODS.splitlines()
    ends = [f"{row},{number},{number + 50}" for number, row in enumerate(rows)]
    (tmp_path / "pods.csv").write_text(
        "\n".join([f"{first},creation_time,deletion_time", *ends]) + "\n"
    )
    return files


def test_with_lifetimes_people_see_who_waits(timed: tuple[str, ...], tmp_path: Path) -> None:
    svg = tmp_path / "waits.svg"
    result = replay(
        *timed,
        *("--mean-load", "70,95%", "--seeds", "1-2", "--policy", "binpack,fragmentation,bestfit"),
        *("--picture", str(svg), "--patience", "30s"),
    )

    assert result.exit_code == 0, result.output
    assert "PODS WAITING" in result.output
    assert "Pods that never got a place" in result.output
    root = ElementTree.fromstring(svg.read_text())
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) == 6


def test_with_lifetimes_programs_get_every_run(timed: tuple[str, ...]) -> None:
    result = replay(*timed, "--mean-load", "85", "--policy", "binpack,spread", "-o", "json")

    [load] = json.loads(result.output)["loads"]
    assert load["mean_load_percent"] == 85
    assert load["policies"]["binpack"]["card_hours_gained"] == 0
    [run] = load["policies"]["spread"]["runs"]
    assert run["in_use_percent"] + run["waiting_percent"] > 50
    assert len(run["in_use_over_time"]) == 100


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--policy", "best"), "policy 'best' is unknown"),
        (("--seeds", "9-1"), "--seeds is '9-1': numbers or ranges are wanted"),
        (("--seeds", "x"), "--seeds is 'x'"),
        (("--load", "0"), "--load is '0': a percentage from 1 to 1000 is wanted"),
        (("--mean-load", "70,x"), "--mean-load is 'x': a percentage from 1 to 300 is wanted"),
        (("--mean-load", "70"), "creation_time is absent: seconds are wanted of every pod"),
        (("--patience", "6h"), "--patience is of use with --mean-load or --from alone"),
        (("--mean-load", "70", "--patience", "6"), "--patience is '6': a number above 0 with s"),
        (("--pods", ""), "--nodes and --pods, or --from, are wanted"),
        (("--since", "3d"), "--since is of use with --from ledger alone"),
        (("--from", "x.jsonl"), "--from has the pods at their own times"),
        (("--from", "/nowhere", "--pods", ""), "/nowhere: not readable: no such file"),
        (("--from", "x", "--since", "3d", "--pods", ""), "a dump has its own period"),
        (("--from", "ledger", "--since", "3", "--pods", ""), "--since is '3': a number above 0"),
        (("--nodes", "/nowhere.csv"), "/nowhere.csv: not readable: no such file"),
        (("--picture", "/nowhere/x.svg"), "--picture /nowhere/x.svg: not writable"),
    ],
)
def test_a_mistake_is_one_sentence(
    files: tuple[str, ...], arguments: tuple[str, ...], sentence: str
) -> None:
    result = replay(*files, *arguments)

    assert result.exit_code == 1
    assert sentence in result.stderr
