"""The API servers of the cases on the Kubernetes API (a module may have its own)."""

from collections.abc import Iterator

import pytest

from tests.contract.kubernetes.servers import Cluster, emulated_or_real, fresh_namespace


@pytest.fixture(scope="module", params=["emulator", "real"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """An API server: ours, and the real one where there is one."""
    with emulated_or_real(request, tmp_path_factory.mktemp("kubernetes")) as cluster:
        yield cluster


@pytest.fixture
def cluster(server: Cluster) -> Cluster:
    """The server, with a namespace only for this test."""
    return fresh_namespace(server)
