"""The boards are what Grafana's own types allow, of each panel's kind (npm's @grafana/schema)."""

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.alerts.live import ROOT

pytestmark = pytest.mark.slow

Json = dict[str, Any]
BOARDS = sorted((ROOT / "k8s" / "chart" / "monitoring" / "dashboards").glob("*.json"))
PACKAGES = ROOT / ".venv" / "boards" / "node_modules"
Compile = Callable[[Mapping[str, Json]], str]


@pytest.fixture
def compile_(tmp_path: Path) -> Compile:
    """Compile boards by TypeScript; returns its errors, empty for valid ones."""
    compiler = PACKAGES / ".bin" / "tsc"
    if not compiler.exists():
        pytest.skip("@grafana/schema is not installed (make test-alerts does, where npm is)")
    (tmp_path / "node_modules").symlink_to(PACKAGES)
    (tmp_path / "board_types.ts").symlink_to(ROOT / "tests" / "alerts" / "board_types.ts")

    def run(boards: Mapping[str, Json]) -> str:
        lines = ["import type { Board } from './board_types';"]
        lines += [
            f"export const b{number}: Board = {json.dumps(board, indent=1)}; // {name}"
            for number, (name, board) in enumerate(boards.items())
        ]
        (tmp_path / "boards.ts").write_text("\n".join(lines))
        done = subprocess.run(
            [
                *(compiler, "--noEmit", "--strict", "--skipLibCheck", "--preserveSymlinks"),
                *("--module", "esnext", "--moduleResolution", "bundler", "boards.ts"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert bool(done.returncode) == bool(done.stdout), done.stderr
        return done.stdout

    return run


def boards() -> dict[str, Json]:
    return {path.stem: json.loads(path.read_text()) for path in BOARDS}


def test_every_board_is_one_to_grafana(compile_: Compile) -> None:
    assert len(boards()) == 7
    assert compile_(boards()) == ""


def wrong_value(board: Json) -> None:
    board["panels"][0]["options"]["colorMode"] = "rainbow"


def unknown_field(board: Json) -> None:
    board["panels"][4]["fieldConfig"]["defaults"]["custom"]["fillOpacitys"] = 3


def no_uid(board: Json) -> None:
    del board["uid"]


@pytest.mark.parametrize("spoil", [wrong_value, unknown_field, no_uid])
def test_what_a_board_may_not_be_is_found(compile_: Compile, spoil: Callable[[Json], None]) -> None:
    board = boards()["hami-overview"]
    spoil(board)

    assert "error TS" in compile_({"overview": board})
