"""`hamictl db` through `kubectl port-forward`, which ends when Postgres closes a connection."""

from urllib.parse import urlsplit, urlunsplit

import pytest
from hamictl.exit_codes import ExitCode

from tests.integration.db.migrations.test_db_commands import Run, read_output
from tests.integration.db.migrations.test_db_commands import run as run
from tests.relay import relay


def test_check_and_upgrade_need_one_connection(run: Run, empty_postgres_dsn: str) -> None:
    """`kubectl port-forward` ends with the first one that Postgres closes."""
    rule = "every rule of the ledger holds"
    for command, sentence in (("upgrade", "is current"), ("check", rule)):
        with relay(empty_postgres_dsn, most=1) as forwarded:
            forwarded.open()
            result = run(forwarded.dsn, command)

        assert result.exit_code == 0, result.output
        assert sentence in read_output(result)


@pytest.mark.parametrize("command", ["check", "upgrade"])
def test_a_forwarded_port_that_closes_is_one_sentence_with_what_to_do(
    run: Run, postgres_dsn: str, command: str
) -> None:
    with relay(postgres_dsn, most_bytes=700) as forwarded:
        refused = run(forwarded.dsn, command)
        forwarded.open()
        cut = run(forwarded.dsn, command)

    for result, what in ((refused, "can't be reached"), (cut, "went away")):
        assert result.exit_code == ExitCode.UNREACHABLE, result.output
        assert f"/{urlsplit(postgres_dsn).path[1:]} {what}: " in read_output(result)
        assert "check that `kubectl port-forward` still runs" in read_output(result)
        assert "Traceback" not in result.output


def test_a_server_that_answers_is_no_forwarded_port_that_closed(
    run: Run, empty_postgres_dsn: str
) -> None:
    result = run(urlunsplit(urlsplit(empty_postgres_dsn)._replace(path="/nothing")), "check")

    assert "port-forward" not in result.output
