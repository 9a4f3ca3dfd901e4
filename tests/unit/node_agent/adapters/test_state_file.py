from pathlib import Path

import pytest
from hami_node_agent.adapters.state_file import StateFile, decode, encode
from hami_node_agent.domain.records import AgentState, PendingReport
from hamicommon.errors import InvalidRequest, Unavailable

from tests.unit.node_agent.builders import a_grant, a_record

STATE = AgentState(reports=(PendingReport(report_id="r", body='{"a": 1}'),)).with_records(
    [a_record(a_grant(), ids={"GPU-x-0", "GPU-y-1"})]
)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json")
    assert file.load() == AgentState()

    file.save(STATE)

    assert StateFile(tmp_path / "state.json").load() == STATE
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'{"version": 9}', encode(STATE)[:-40], b'{"version":1}']
)
def test_a_damaged_file_is_put_aside_and_the_agent_starts_empty(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content)

    assert StateFile(path).load() == AgentState()

    assert path.with_suffix(".damaged").read_bytes() == content


def test_a_full_disk_is_said_in_our_words(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="can't be written"):
        StateFile(tmp_path / "missing" / "state.json").save(STATE)


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="state version 2"):
        decode(b'{"version": 2}')
