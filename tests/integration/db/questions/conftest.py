"""A filled ledger that the tests of questions share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.db.questions.four_days import Filled, four_days
from tests.servers import Databases


@pytest.fixture(scope="session")
def filled(databases: Databases) -> Iterator[Filled]:
    with four_days(databases) as found:
        yield found
