"""libpathmap: prefixes of paths lead elsewhere, whole components only, the longest wins."""

import subprocess
import sys
from pathlib import Path

from tests.native.machine import FAKEGPU, Machine
from tests.waiting import PATIENCE_S


def run(machine: Machine, rules: str, *arguments: str) -> str:
    env = machine.env(LD_PRELOAD=str(FAKEGPU / "libpathmap.so"), HAMI_PATHMAP=rules)
    return subprocess.run(
        arguments, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    ).stdout


def test_a_program_reads_and_writes_through_the_map(machine: Machine, tmp_path: Path) -> None:
    host = tmp_path / "host"
    (host / "deep").mkdir(parents=True)
    (host / "limits").write_text("hello")
    (tmp_path / "inner").mkdir()
    rules = f"/made/up={host};/made/up/deep={tmp_path / 'inner'}"
    assert run(machine, rules, "cat", "/made/up/limits") == "hello"
    script = (
        "import os, pathlib; p = pathlib.Path('/made/up'); (p / 'deep/new').mkdir();"
        "(p / 'a').write_text('x'); (p / 'a').rename(p / 'b'); "
        "print(sorted(os.listdir(p)), (p / 'b').exists())"
    )
    assert run(machine, rules, sys.executable, "-c", script) == "['b', 'deep', 'limits'] True\n"
    assert (tmp_path / "inner/new").is_dir()


def test_a_path_that_only_begins_alike_is_left_alone(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made-more").write_text("mine")
    rules = f"{tmp_path}/made=/nowhere"
    assert run(machine, rules, "cat", f"{tmp_path}/made-more") == "mine"
