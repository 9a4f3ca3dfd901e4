"""`state.json` on a disk that ends in the middle of a write (a file-size limit of a child)."""

import subprocess
import sys
from pathlib import Path

import pytest
from hamilocal.supervisor.ports import stable_ports
from hamilocal.supervisor.state_file import SupervisorError, read_state, write_state

CHILD = """
import resource, sys
from pathlib import Path
from hamilocal.supervisor.state_file import SupervisorError, write_state

resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    write_state(Path(sys.argv[1]), {"services": "x" * 8192})
except SupervisorError as exc:
    print(exc)
"""


def test_a_state_that_the_disk_cuts_short_leaves_the_old_one_whole(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_state(path, {"services": {}})

    command = [sys.executable, "-c", CHILD, str(path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)

    assert f"{path} can't be written" in ended.stdout
    assert read_state(path) == {"services": {}}
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


def test_the_state_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    write_state(path, {})
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_folder_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SupervisorError, match="can't be written"):
        write_state(tmp_path / "file" / "state.json", {})


def test_ports_are_remembered_and_leave_one_file(tmp_path: Path) -> None:
    path = tmp_path / "ports.json"
    assert stable_ports(("a", "b"), path) == stable_ports(("a", "b"), path)
    assert [each.name for each in tmp_path.iterdir()] == ["ports.json"]
