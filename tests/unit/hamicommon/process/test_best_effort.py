"""Failures that are logged, and those that pass."""

import logging

import pytest
from hamicommon.errors import Conflict, NotFound, Unavailable
from hamicommon.process.best_effort import log_failure

logger = logging.getLogger(__name__)


def test_a_failure_is_logged_with_its_fields_and_what_follows_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with log_failure(logger, "Failed to try", pod_uid="u"):
        raise Unavailable("away")

    [record] = caplog.records
    assert (record.levelname, record.message) == ("WARNING", "Failed to try")
    assert (record.__dict__["pod_uid"], record.__dict__["error"]) == ("u", "away")


@pytest.mark.parametrize("error", [NotFound("gone"), Conflict("other"), ValueError("bug")])
def test_other_kinds_of_errors_pass(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    of = Unavailable if isinstance(error, Conflict) else None
    with (
        pytest.raises(type(error)),
        log_failure(logger, "Failed to try", but=NotFound, **({"of": of} if of else {})),
    ):
        raise error

    assert not caplog.records
