from dataclasses import replace
from pathlib import Path

import pytest
from hami_node_agent.adapters.state_file import StateFile, decode, encode
from hami_node_agent.devices.mig_partition import OwnInstance
from hami_node_agent.grants.records import AgentState, PendingReport
from hamicommon.errors import InvalidRequest, Unavailable
from hamicommon.k8s.mig import MigSlice

from tests.unit.node_agent.builders import CARD_A, CARD_B, a_grant, a_record

STATE = AgentState(reports=(PendingReport(report_id="r", body='{"a": 1}'),)).with_records(
    [a_record(a_grant(), ids={"GPU-x-0", "GPU-y-1"})]
)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json")
    assert file.load() == AgentState()

    file.save(STATE)

    assert StateFile(tmp_path / "state.json").load() == STATE
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_an_agent_of_the_version_before_can_read_a_sidecars_record() -> None:
    [record] = STATE.records.values()
    state = AgentState().with_records([replace(record, role="sidecar")])

    [read] = decode(encode(state)).records.values()

    assert read.role == "app"


def test_instances_and_the_answers_that_name_them_are_loaded_as_they_were() -> None:
    part = MigSlice(profile="2g.20gb", start=4, size=2)
    made = OwnInstance(card=CARD_A, part=part, uuid="MIG-a", gpu_instance=5, compute_instance=0)
    record = a_record(a_grant(), ids={"GPU-x-0"})
    shares = tuple(replace(share, detail=part.detail) for share in record.shares)
    record = replace(record, shares=shares, mig_uuids=("MIG-a",))
    state = AgentState().with_records([record])
    state = state.with_instance(made).with_instance(OwnInstance(card=CARD_B, part=part))

    assert decode(encode(state)) == state
    assert decode(encode(state)).records[record.nonce].shares[0].detail == part.detail


def test_what_is_made_replaces_what_was_about_to_be_made() -> None:
    part = MigSlice(profile="2g.20gb", start=4, size=2)
    intent = OwnInstance(card=CARD_A, part=part)
    made = replace(intent, uuid="MIG-a")
    state = AgentState().with_instance(intent).with_instance(made)

    assert state.instances == (made,)
    assert state.without_instances([intent]).instances == ()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'{"version": 9}', encode(STATE)[:-40], b'{"version":1}']
)
def test_a_damaged_file_is_kept_and_the_agent_starts_empty(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content)

    assert StateFile(path).load() == AgentState()

    assert path.with_suffix(".damaged").read_bytes() == content


def test_a_full_disk_is_our_own_error(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="can't be written"):
        StateFile(tmp_path / "missing" / "state.json").save(STATE)


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="state version 2"):
        decode(b'{"version": 2}')
