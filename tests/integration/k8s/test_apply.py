"""The manifests are accepted by a real API server (KUBEBUILDER_ASSETS names the folder)."""

import base64
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hamilocal.servers.control_plane.assets import Assets, control_plane, find_assets

from tests.e2e.conftest import kubernetes_client
from tests.kubectl import kubectl_for
from tests.waiting import PATIENCE_S, wait

PROJECT = Path(__file__).parents[3]
FOLDER = os.environ.get("KUBEBUILDER_ASSETS", "")
KUBECTL = shutil.which("kubectl")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not FOLDER, reason="KUBEBUILDER_ASSETS is not set"),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]

Sh = Callable[..., str]


@pytest.fixture(scope="module")
def assets() -> Assets:
    return find_assets(Path(FOLDER))


@pytest.fixture(scope="module")
def sh(tmp_path_factory: pytest.TempPathFactory, assets: Assets) -> Iterator[Sh]:
    """Runs a command with the administrator's kubeconfig; its standard output."""
    assert KUBECTL is not None
    with (
        control_plane(tmp_path_factory.mktemp("control-plane"), assets=assets) as plane,
        kubernetes_client(plane.kubeconfig) as api,
    ):
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


def test_bootstrap_and_manifests_are_accepted_and_may_be_repeated(sh: Sh, assets: Assets) -> None:
    modern = assets.version >= (1, 28)

    output = sh("k8s/bootstrap")
    assert "authority" in output
    [overlay] = re.findall(r"now apply (\S+),", output)
    sh("kubectl", "apply", "--kustomize", overlay)
    sh("k8s/bootstrap")
    sh("kubectl", "apply", "--kustomize", overlay)
    again = sh("k8s/bootstrap")

    assert again.splitlines() == ["bootstrap: the API server trusts the webhook"]
    registered = json.loads(
        sh("kubectl", "get", "mutatingwebhookconfiguration", "hami-webhook", "--output", "json")
    )["webhooks"][0]
    assert registered["clientConfig"]["caBundle"]
    assert registered["failurePolicy"] == ("Fail" if modern else "Ignore")
    assert ("matchConditions" in registered) == modern


def test_renewed_certificates_are_of_the_same_authority(sh: Sh, tmp_path: Path) -> None:
    get = ("kubectl", "--namespace", "hami-system", "get", "--output", "json")
    before = json.loads(sh(*get, "secret", "hami-webhook-tls"))["data"]["tls.crt"]

    sh("k8s/bootstrap", "--renew")

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
