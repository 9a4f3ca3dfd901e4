"""The API servers that the cases on the Kubernetes API ask (a module may have its own), and the
ledgers that those on allocations ask."""

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.contract.allocation_stores import Harness, opened
from tests.contract.kubernetes_servers import Cluster, emulated_or_real, fresh_namespace


@pytest.fixture(scope="module", params=["emulator", "real"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """An API server: ours, and the real one where there is one."""
    with emulated_or_real(request, tmp_path_factory.mktemp("kubernetes")) as cluster:
        yield cluster


@pytest.fixture
def cluster(server: Cluster) -> Cluster:
    """The server, with a namespace of this test alone."""
    return fresh_namespace(server)


@pytest.fixture(
    params=["fake", "simulated", pytest.param("postgres", marks=pytest.mark.integration)]
)
async def harness(request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    """Each store in turn."""
    async with opened(request) as harness:
        yield harness
