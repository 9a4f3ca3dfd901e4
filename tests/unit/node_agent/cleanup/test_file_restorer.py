"""Files that containers see are written again, and only lasting differences count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from hami_node_agent.cleanup import installed_files
from hami_node_agent.cleanup.installed_files import FileRestorer
from hami_node_agent.grants.records import AgentState, Record
from hami_node_agent.grants.state import NodeState
from hamicommon.errors import Unavailable

from tests.unit.node_agent.builders import a_grant, a_record


class Store:
    def save(self, state: AgentState) -> None:
        del state


class Files:
    def __init__(self) -> None:
        self.installed: dict[Path, str] = {}
        self.wrong: list[list[Record]] = []
        self.written: list[Record] = []
        self.away = False

    def restore_installed(self) -> Mapping[Path, str]:
        if self.away:
            raise Unavailable("/host/ld.so.preload can't be written again: read-only")
        return self.installed

    def wrong_limits(self, records: Iterable[Record]) -> list[Record]:
        list(records)
        return self.wrong.pop(0) if self.wrong else []

    def write_limits(self, record: Record) -> None:
        self.written.append(record)

    def limits_dir(self, nonce: str) -> Path:
        return Path("/limits") / nonce


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed_files, "CONFIRM_S", 0.0)


def restorer(files: Files) -> FileRestorer:
    return FileRestorer(files, NodeState(Store(), AgentState()))


async def test_an_installed_file_is_counted_by_its_name() -> None:
    files = Files()
    files.installed = {Path("/host/libvgpu.so"): "it was empty"}
    looking = restorer(files)

    await looking.once()

    assert looking.restored == {"libvgpu.so": 1}


async def test_limits_that_stay_wrong_are_written_again() -> None:
    record, files = a_record(a_grant(), ids={"x"}), Files()
    files.wrong = [[record], [record]]
    looking = restorer(files)

    await looking.once()

    assert files.written == [record]
    assert looking.restored == {"limits": 1}


async def test_limits_that_are_being_written_are_left_alone() -> None:
    files = Files()
    files.wrong = [[a_record(a_grant(), ids={"x"})], []]
    looking = restorer(files)

    await looking.once()

    assert files.written == []


async def test_what_can_not_be_written_is_a_problem_until_it_can() -> None:
    files = Files()
    files.away = True
    looking = restorer(files)

    with pytest.raises(Unavailable):
        await looking.once()
    assert looking.problem == "/host/ld.so.preload can't be written again: read-only"

    files.away = False
    await looking.once()
    assert looking.problem == ""
