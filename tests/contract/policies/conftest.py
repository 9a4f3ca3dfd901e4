"""One control plane for all modules of this folder; skipped, with the reason, without one."""

from collections.abc import Iterator

import pytest
from hamilocal.servers.control_plane.assets import Assets, control_plane

from tests.contract.policies.guarded import Guarded, User, install
from tests.e2e.conftest import kubernetes_client


@pytest.fixture(scope="package")
def guarded(
    kubernetes_assets: Assets, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    if kubernetes_assets.version < (1, 30):
        pytest.skip("ValidatingAdmissionPolicy is in Kubernetes 1.30 and newer")
    with (
        control_plane(tmp_path_factory.mktemp("policies"), assets=kubernetes_assets) as plane,
        kubernetes_client(plane.kubeconfig) as client,
    ):
        server = Guarded(admin=User(client=client), kubeconfig=plane.kubeconfig)
        install(server)
        yield server
