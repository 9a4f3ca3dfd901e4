"""One control plane for all modules of this folder; skipped, with the reason, without one."""

import json
from collections.abc import Iterator

import pytest

from tests.contract.policies.guarded import Guarded, User, install
from tests.control_plane import Assets, control_plane
from tests.e2e.conftest import kubernetes_client


@pytest.fixture(scope="package")
def guarded(
    kubernetes_assets: Assets, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    if kubernetes_assets.version < (1, 30):
        pytest.skip("ValidatingAdmissionPolicy is in Kubernetes 1.30 and newer")
    folder = tmp_path_factory.mktemp("policies")
    policy, log = folder / "audit-policy.json", folder / "audit.log"
    rules = [{"level": "Metadata"}]
    policy.write_text(
        json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules})
    )
    audited = [f"--audit-policy-file={policy}", f"--audit-log-path={log}"]
    with (
        control_plane(folder, assets=kubernetes_assets, arguments=audited) as plane,
        kubernetes_client(plane.kubeconfig) as client,
    ):
        server = Guarded(admin=User(client=client), kubeconfig=plane.kubeconfig, audit_log=log)
        install(server)
        yield server
