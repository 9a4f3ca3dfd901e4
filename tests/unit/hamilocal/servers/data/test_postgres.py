"""PostgreSQL from the wheel: after a kill, beside a foreign lock file, started twice."""

import os
import shutil
import socket
from pathlib import Path

import pytest
from hamilocal.servers import binaries
from hamilocal.servers.data import postgres
from hamilocal.supervisor.plan import ServerError

from tests.processes import running, start
from tests.servers import psql

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One data folder for the module: making it takes most of a second."""
    return tmp_path_factory.mktemp("postgres")


def test_what_was_written_is_there_after_a_stop_and_after_a_kill(folder: Path) -> None:
    with running(postgres.prepare(folder), die_with_parent=True) as server:
        psql(server.value.url, "CREATE TABLE kept (id int)")
    with running(postgres.prepare(folder), die_with_parent=True) as server:
        psql(server.value.url, "INSERT INTO kept VALUES (1)")
        server.kill()
    with running(postgres.prepare(folder), die_with_parent=True) as server:
        assert psql(server.value.url, "SELECT id FROM kept") == "1"


def test_a_server_is_durable_unless_a_test_asks_otherwise(folder: Path) -> None:
    question = (
        "SELECT current_setting('fsync'), current_setting('synchronous_commit'),"
        " current_setting('max_connections'), current_setting('listen_addresses')"
    )
    with running(postgres.prepare(folder), die_with_parent=True) as server:
        assert psql(server.value.url, question) == "on|on|200|127.0.0.1"
    with running(postgres.prepare(folder, durable=False), die_with_parent=True) as server:
        assert psql(server.value.url, question) == "off|off|200|127.0.0.1"


def test_a_lock_file_whose_pid_now_belongs_to_another_program_is_removed(folder: Path) -> None:
    postgres.prepare(folder)
    lock = folder / "data" / "postmaster.pid"
    lock.write_text(f"{os.getpid()}\n{folder / 'data'}\n")
    with running(postgres.prepare(folder), die_with_parent=True) as server:
        assert psql(server.value.url, "SELECT 1") == "1"


def test_a_second_server_on_the_same_folder_is_refused_with_the_pid_of_the_first(
    folder: Path,
) -> None:
    first = start(postgres.prepare(folder), die_with_parent=True)
    with pytest.raises(ServerError, match=f"already runs on .* as process {first.value.pid}"):
        postgres.prepare(folder)
    first.stop()


def test_a_start_on_a_taken_port_names_the_port(folder: Path, tmp_path: Path) -> None:
    first = start(postgres.prepare(folder), die_with_parent=True)
    with pytest.raises(ServerError, match="Address already in use"):
        start(postgres.prepare(tmp_path, port=first.value.port), die_with_parent=True)
    first.stop()


def test_an_open_client_does_not_hold_up_a_clean_stop(folder: Path) -> None:
    with running(postgres.prepare(folder), die_with_parent=True) as server:
        with socket.create_connection(("127.0.0.1", server.value.port)):
            server.stop()
        assert not server.is_running()


def test_a_password_is_demanded_when_one_was_given(tmp_path: Path) -> None:
    with running(postgres.prepare(tmp_path, password="s3cret"), die_with_parent=True) as server:
        assert psql(server.value.url, "SELECT 1") == "1"
        wrong = server.value.url.replace("s3cret", "wrong")
        with pytest.raises(AssertionError, match="password authentication failed"):
            psql(wrong, "SELECT 1")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else")
def test_as_root_without_user_namespaces_it_runs_as_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = binaries.UnprivilegedCommand(prefix=binaries._SETPRIV, owner_uid=65534)
    monkeypatch.setattr(postgres, "find_unprivileged", lambda: nobody)
    tmp_path.chmod(0o700)
    plan = postgres.prepare(tmp_path / "data")
    try:
        with running(plan, die_with_parent=True) as server:
            assert Path(f"/proc/{server.value.pid}").stat().st_uid == 65534
            assert psql(server.value.url, "SELECT 1") == "1"
    finally:
        shutil.rmtree(plan.cwd.parent)
