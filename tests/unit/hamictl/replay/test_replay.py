"""`hamictl replay` on files: tables, JSON, a picture, and mistakes."""

import json
import os
import pty
import select
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hamictl.__main__ import app
from hamictl.exit_codes import ExitCode
from hamictl.manifests import MAX_BYTES
from hamireplay import runs
from hamireplay.openb import read_trace
from typer.testing import CliRunner, Result

from tests.waiting import PATIENCE_S

NODES = "sn,cpu_milli,memory_mib,gpu,model\n" + "".join(
    f"n{number},32000,100000,4,A100\n" for number in range(4)
)
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n" + "".join(
    f"p{number},{1000 * (number % 4)},100,1,{(810, 470, 1000)[number % 3]}\n"
    for number in range(20)
)

MEMORY_NODES = NODES.replace("model", "model,gpu_memory_mib").replace("A100", "A100,40000")
MEMORY_PODS = PODS.replace("gpu_milli", "gpu_milli,gpu_memory_mib").replace("0\n", "0,9000\n")


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
        (("--seeds", "9-1"), "--seeds is '9-1': use numbers or ranges"),
        (("--seeds", "x"), "--seeds is 'x'"),
        (("--load", "0"), "--load is '0': use a percentage from 1 to 1000"),
        (("--mean-load", "70,x"), "--mean-load is 'x': use a percentage from 1 to 300"),
        (("--mean-load", "70"), "creation_time is absent: expected seconds of every pod"),
        (("--patience", "6h"), "use --patience only with --mean-load or --from"),
        (
            ("--mean-load", "70", "--patience", "6"),
            "--patience is '6': use a number above 0 with s",
        ),
        (("--pods", ""), "--nodes and --pods, or --from, are required"),
        (("--since", "3d"), "use --since only with --from ledger"),
        (("--from", "x.jsonl"), "--from has its own pods and times"),
        (
            ("--from", "x", "--pods", "", "--seeds", "7"),
            "leave out --pods, --load, --mean-load and",
        ),
        (("--nodes", "-", "--pods", "-"), "standard input is one file"),
        (("--from", "/nowhere", "--pods", ""), "/nowhere does not exist"),
        (("--from", "x", "--since", "3d", "--pods", ""), "a dump has its own period"),
        (
            ("--from", "ledger", "--since", "3", "--pods", ""),
            "--since is '3': use a number above 0",
        ),
        (("--nodes", "/nowhere.csv"), "/nowhere.csv does not exist"),
        (("--picture", "/nowhere/x.svg"), "--picture /nowhere/x.svg: not writable"),
    ],
)
def test_a_mistake_is_one_sentence(
    files: tuple[str, ...], arguments: tuple[str, ...], sentence: str
) -> None:
    result = replay(*files, *arguments)

    about_a_file = any(text in sentence for text in ("/nowhere", "creation_time"))
    assert result.exit_code == (ExitCode.FAILED if about_a_file else ExitCode.WRONG_USAGE)
    assert sentence in result.stderr


@pytest.mark.parametrize(
    ("pods", "sentence"),
    [
        (
            "",
            "pods.csv is empty: expected a first line name,cpu_milli,memory_mib,num_gpu,gpu_milli",
        ),
        ("name,cpu_milli\np,1\n", "pods.csv: the first line lacks memory_mib, num_gpu, gpu_milli"),
        (PODS.splitlines()[0], "pods.csv has no pod that asks for a card"),
        (PODS.splitlines()[0] + "\np,1,1,1000,1000\n", "no pod arrives: every one asks for more"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(
    files: tuple[str, ...], tmp_path: Path, pods: str, sentence: str
) -> None:
    (tmp_path / "pods.csv").write_text(pods)
    result = replay(*files)

    assert result.exit_code == 1
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("pods", "arguments", "sentence"),
    [
        (PODS, ("--picture", "/nowhere/x.svg"), "--picture /nowhere/x.svg: not writable"),
        (
            PODS.replace(",1,470", ",2,470"),
            ("--policy", "binpack,fgd"),
            "fgd: a pod asks for 2 cards of 470 milli",
        ),
        (
            MEMORY_PODS,
            ("--policy", "binpack,bestfit"),
            "bestfit and fgd count one number per card",
        ),
    ],
)
def test_what_a_run_would_end_with_is_found_before_the_first(
    files: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pods: str,
    arguments: tuple[str, ...],
    sentence: str,
) -> None:
    (tmp_path / "pods.csv").write_text(pods)
    monkeypatch.delattr(runs, "run")
    result = replay(*files, *arguments)

    assert result.exit_code == 1
    assert sentence in result.stderr


def test_where_pods_ask_for_card_memory_fgd_is_left_out(
    files: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "nodes.csv").write_text(MEMORY_NODES)
    (tmp_path / "pods.csv").write_text(MEMORY_PODS)
    result = replay(*files, "-o", "json")

    assert list(json.loads(result.output)["policies"]) == ["binpack", "fragmentation"]


def test_a_picture_that_could_be_written_is_not_there_after_a_mistake(
    files: tuple[str, ...], tmp_path: Path
) -> None:
    kept, svg = tmp_path / "kept.svg", tmp_path / "curve.svg"
    kept.write_text("<svg/>")

    for picture in (kept, svg):
        done = replay(*files, "--policy", "best", "--picture", str(picture))
        assert done.exit_code == ExitCode.WRONG_USAGE
    assert kept.read_text() == "<svg/>"
    assert not svg.exists()


def test_columns_that_nobody_looks_at_are_named(files: tuple[str, ...], tmp_path: Path) -> None:
    first, *rows = PODS.splitlines()
    (tmp_path / "pods.csv").write_text(
        "\n".join([f"{first},gpu_mem", *(f"{row},8" for row in rows)])
    )
    [note] = json.loads(replay(*files, "--policy", "fgd", "-o", "json").output)["notes"]

    assert note.startswith("Columns that are not looked at: ")
    assert note.endswith("pods.csv: gpu_mem.")


def test_a_huge_file_is_not_read(files: tuple[str, ...], tmp_path: Path) -> None:
    with (tmp_path / "pods.csv").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    result = replay(*files)

    assert result.exit_code == 1
    assert "pods.csv is larger than 1024 MiB" in result.stderr


def test_a_spreadsheets_mark_at_the_beginning_is_no_mistake(
    files: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "pods.csv").write_text("\ufeff" + PODS)

    assert replay(*files, "--policy", "fgd").exit_code == 0


def test_pods_of_a_model_that_no_node_has_are_named(files: tuple[str, ...], tmp_path: Path) -> None:
    first, *rows = PODS.splitlines()
    lines = [
        f"{first},gpu_spec",
        *(f"{row},{'H900' if n < 3 else ''}" for n, row in enumerate(rows)),
    ]
    (tmp_path / "pods.csv").write_text("\n".join(lines))
    sentence = "3 pods name only models that no node has (H900): every policy refuses them."

    assert sentence in " ".join(replay(*files, "--policy", "fgd").output.split())
    result = replay(*files, "--policy", "fgd", "-o", "json")
    assert json.loads(result.output)["notes"] == [sentence]


def test_pods_without_cards_may_be_placed_by_kube_scheduler(
    files: tuple[str, ...], tmp_path: Path
) -> None:
    nodes, pods = tmp_path / "nodes.csv", tmp_path / "pods.csv"
    head = NODES.partition("\n")[0]
    nodes.write_text(f"{head}\na,10000,1000,1,A\nb,10000,1000,1,A\n")
    # Both of the first kind on one host leave the other to one of the second.
    host, card = "{},5000,0,0,0\n", "{},6000,0,1,1000\n"
    head = PODS.partition("\n")[0]
    pods.write_text(f"{head}\n" + host.format("h1") + host.format("h2") + card.format("c1"))
    ways = ("policy", "least-allocated", "most-allocated", "extender")

    def run_replay(way: str) -> str:
        option = ("--pods-without-cards", way) if way != "policy" else ()
        return replay(*files, "--policy", "binpack", "--seeds", "1-9", *option, "-o", "json").output

    answers = {way: json.loads(run_replay(way)) for way in ways}
    shown = replay(*files, "--pods-without-cards", "least-allocated")

    assert {way: answers[way]["pods_without_cards"] for way in ways} == {way: way for way in ways}
    assert answers["least-allocated"]["policies"] != answers["most-allocated"]["policies"]
    assert "placed by kube-scheduler's own score, least-allocated" in shown.output
    shown = replay(*files, "--pods-without-cards", "extender")
    assert "kube-scheduler: its default scores, and ours with weight 5." in shown.output


def test_a_history_has_no_pods_without_cards_to_place() -> None:
    result = replay("--from", "ledger", "--pods-without-cards", "most-allocated")

    assert result.exit_code != 0
    assert "leave out --pods-without-cards with --from" in " ".join(result.output.split())


def test_on_a_terminal_a_bar_shows_how_far_each_run_is(
    files: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal, os.fdopen(master, "rb") as seen:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        trace = read_trace(NODES, PODS, nodes_file="n", pods_file="p")
        runs.arriving(trace, ["fgd"], [7], 1.3)
        terminal.flush()
        shown = b""
        # The output comes in pieces.
        while b"fgd, seed 7" not in shown and select.select([seen], [], [], PATIENCE_S)[0]:
            shown += os.read(seen.fileno(), 65_536)

    assert b"fgd, seed 7" in shown
