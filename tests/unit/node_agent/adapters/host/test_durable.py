"""Files that are replaced when the disk becomes full in the middle of a write.

A limit of a child process's file size acts as a nearly full disk: the first `write` is partial, and
the next one fails.
"""

import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_BYTES = 4096
CHILD = f"""
import resource, sys
from pathlib import Path
from hamicommon.errors import Unavailable
from hami_node_agent.adapters.cdi_files import CdiFiles
from hami_node_agent.adapters.host.durable import replace_file
from hami_node_agent.adapters.state_file import StateFile
from hami_node_agent.devices.device_list import ContainerSpec
from hami_node_agent.grants.records import AgentState, PendingReport

resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT_BYTES}, {LIMIT_BYTES}))
path, big = Path(sys.argv[2]), "x" * {2 * LIMIT_BYTES}
try:
    match sys.argv[1]:
        case "durable":
            replace_file(path, big.encode())
        case "not durable":
            replace_file(path, big.encode(), durable=False)
        case "state":
            StateFile(path).save(AgentState(reports=(PendingReport(report_id="r", body=big),)))
        case "CDI":
            CdiFiles(path).write("n", ContainerSpec(envs={{"A": big}}, mounts=(), device_files=()))
except (OSError, Unavailable) as exc:
    print(type(exc).__name__)
else:
    print("written")
"""


def _child(what: str, path: Path) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", CHILD, what, str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return ended.stdout.strip()


@pytest.mark.parametrize(
    ("what", "error"),
    [("durable", "OSError"), ("not durable", "OSError"), ("state", "Unavailable")],
)
def test_a_write_that_the_disk_cuts_short_leaves_the_old_file_whole(
    what: str, error: str, tmp_path: Path
) -> None:
    path = tmp_path / "state.json"
    path.write_text("what was there")

    assert _child(what, path) == error

    assert path.read_text() == "what was there"
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


def test_a_cdi_file_that_the_disk_cuts_short_is_not_there(tmp_path: Path) -> None:
    assert _child("CDI", tmp_path) == "Unavailable"

    assert list(tmp_path.iterdir()) == []
