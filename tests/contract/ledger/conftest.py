"""The ledgers that the cases on allocations ask."""

from collections.abc import AsyncIterator

import pytest

from tests.contract.ledger.allocation_stores import Harness, open_store


@pytest.fixture(
    params=["fake", "simulated", pytest.param("postgres", marks=pytest.mark.integration)]
)
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    """Each store in turn."""
    async with open_store(request) as harness:
        yield harness
