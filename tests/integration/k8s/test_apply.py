"""The manifests are accepted by a real API server (KUBEBUILDER_ASSETS names the folder)."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.bootstrapped import bootstrap
from tests.control_plane import ControlPlane, control_plane, find_assets
from tests.e2e.conftest import kubernetes_client
from tests.kubectl import kubectl_for
from tests.waiting import PATIENCE_S, wait

PROJECT = Path(__file__).parents[3]
FOLDER = os.environ.get("KUBEBUILDER_ASSETS", "")
KUBECTL = shutil.which("kubectl")

pytestmark = [
    pytest.mark.skipif(not FOLDER, reason="KUBEBUILDER_ASSETS is not set"),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]

Sh = Callable[..., str]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    folder = tmp_path_factory.mktemp("control-plane")
    with control_plane(folder, assets=find_assets(Path(FOLDER))) as plane:
        yield plane


@pytest.fixture(scope="module")
def sh(tmp_path_factory: pytest.TempPathFactory, plane: ControlPlane) -> Iterator[Sh]:
    """Runs a command with the administrator's kubeconfig; its standard output."""
    assert KUBECTL is not None
    with kubernetes_client(plane.kubeconfig) as api:
        wait(lambda: api.get("/openapi/v2").status_code == 200, "the API is described")
        folder = tmp_path_factory.mktemp("kubectl") / "bin"
        kubectl_for(api, Path(KUBECTL), folder)
        env = {
            **os.environ,
            "KUBECONFIG": str(plane.kubeconfig),
            "PATH": f"{folder}:{os.environ['PATH']}",
        }

        def run(*argv: str) -> str:
            done = subprocess.run(
                argv,
                cwd=PROJECT,
                env=env,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
            assert done.returncode == 0, done.stderr
            return done.stdout

        yield run


def manifests(version: tuple[int, int]) -> str:
    """Return the manifests that k8s/README.md names for the version."""
    overlays = ((23, "old-cluster"), (25, "v1.23"), (28, "v1.25"), (30, "v1.28"))
    older = [name for below, name in overlays if version < (1, below)]
    return f"k8s/overlays/{older[0]}" if older else "k8s/base"


def test_manifests_and_bootstrap_are_accepted_and_may_be_repeated(
    sh: Sh, plane: ControlPlane, tmp_path: Path
) -> None:
    assets = plane.assets
    modern = assets.version >= (1, 28)

    sh("kubectl", "apply", "--kustomize", manifests(assets.version))
    assert "Registered the webhook with the API server" in bootstrap(plane, tmp_path, sh)
    sh("kubectl", "apply", "--kustomize", manifests(assets.version))

    assert bootstrap(plane, tmp_path, sh) == ""
    registered = json.loads(
        sh("kubectl", "get", "mutatingwebhookconfiguration", "hami-webhook", "--output", "json")
    )["webhooks"][0]
    assert registered["clientConfig"]["caBundle"]
    assert registered["failurePolicy"] == ("Fail" if modern else "Ignore")
    assert ("matchConditions" in registered) == modern


def test_certificates_that_were_deleted_come_again_of_the_same_authority(
    sh: Sh, plane: ControlPlane, tmp_path: Path
) -> None:
    get = ("kubectl", "--namespace", "hami-system", "get", "--output", "json")
    before = json.loads(sh(*get, "secret", "hami-webhook-tls"))["data"]["tls.crt"]

    sh("kubectl", "--namespace", "hami-system", "delete", "secret", "hami-webhook-tls")
    bootstrap(plane, tmp_path, sh)

    data = json.loads(sh(*get, "secret", "hami-webhook-tls"))["data"]
    authority = json.loads(sh(*get, "configmap", "hami-ca"))["data"]["ca.crt"]
    assert data["tls.crt"] != before
    (tmp_path / "ca.crt").write_text(authority)
    leaf = tmp_path / "leaf.crt"
    leaf.write_bytes(base64.b64decode(data["tls.crt"]))
    sh(
        "openssl",
        "verify",
        "-CAfile",
        str(tmp_path / "ca.crt"),
        "-verify_hostname",
        "hami-webhook.hami-system.svc",
        str(leaf),
    )
