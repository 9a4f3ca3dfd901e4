"""The ledgers that the cases on allocations ask."""

from collections.abc import AsyncIterator

import pytest

from tests.contract.ledger.allocation_stores import Harness, opened


@pytest.fixture(
    params=["fake", "simulated", pytest.param("postgres", marks=pytest.mark.integration)]
)
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    """Each store in turn."""
    async with opened(request) as harness:
        yield harness
