"""One running system per session: on the emulated API server, or on a real control plane."""

import json
import os
import shutil
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
import yaml
from hamilocal.system.kubernetes import scheduler_configuration
from hamilocal.system.options import UpOptions

from tests import measured
from tests.control_plane import control_plane, find_assets
from tests.e2e.secrets import leaks, secrets_of, written_by
from tests.e2e.system import System, hamictl
from tests.processes import running
from tests.servers import memory_folder
from tests.waiting import PATIENCE_S


@contextmanager
def running_system(
    kind: str, *flags: str, environment: Mapping[str, str] | None = None
) -> Iterator[System]:
    """`hamictl up` with these flags (and variables, for every process) in a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="hami-e2e-", dir=memory_folder()))
    folder.chmod(0o755)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        plane = None
        if kind == "real":
            assets = find_assets(Path(os.environ["KUBEBUILDER_ASSETS"]))
            measured.note(f"control plane: Kubernetes {assets.version[0]}.{assets.version[1]}")
            plane = stack.enter_context(control_plane(folder / "plane", assets=assets))
            flags = (*flags, "--kubeconfig", str(plane.kubeconfig))
        home = folder / "system"
        stack.callback(hamictl, home, "down", environment=environment)
        up = ("up", "--json", "--detach", "--no-demo", *flags)
        text = hamictl(home, *up, environment=environment)
        described = json.loads(text)
        if plane is not None:
            configuration = scheduler_configuration(
                kubeconfig_path="",
                extender_url=described["scheduler_url"],
                scheduler_name="hami-scheduler",
                resources=UpOptions().vendors().resource_names,
                score_pods_without_cards="--score-pods-without-cards" in flags,
            )
            plan = plane.scheduler_plan(
                configuration["extenders"], profiles=("default-scheduler", "hami-scheduler")
            )
            stack.enter_context(running(plan, die_with_parent=True))
        api = stack.enter_context(kubernetes_client(Path(described["kubeconfig"])))
        yield System(described=described, folder=home, api=api)


def kubernetes_client(kubeconfig: Path) -> httpx.Client:
    """An HTTP client that is logged in with the kubeconfig's credentials."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    context = ssl.create_default_context()
    if "certificate-authority" in cluster:
        context.load_verify_locations(cafile=cluster["certificate-authority"])
    elif "certificate-authority-data" in cluster:
        import base64

        text = base64.b64decode(cluster["certificate-authority-data"]).decode()
        context.load_verify_locations(cadata=text)
    return httpx.Client(
        base_url=cluster["server"],
        verify=context,
        headers={"Authorization": f"Bearer {user['token']}"},
        timeout=PATIENCE_S,
    )


@pytest.fixture(scope="session")
def cluster_kind(request: pytest.FixtureRequest) -> str:
    """`emulator`, or `real` with the binaries that KUBEBUILDER_ASSETS names."""
    kind = str(request.config.getoption("--cluster"))
    if kind == "real" and "KUBEBUILDER_ASSETS" not in os.environ:
        raise pytest.UsageError(
            "--cluster=real: set KUBEBUILDER_ASSETS to a folder with kube-apiserver, "
            "kube-scheduler and etcd"
        )
    return kind


@pytest.fixture(scope="session")
def running_cluster(cluster_kind: str) -> Iterator[System]:
    """Three nodes with four cards each."""
    with running_system(cluster_kind) as system:
        yield system
        # Of everything that all cases did to it.
        assert leaks(secrets_of(system), written_by(system)) == []


@pytest.fixture
def system(running_cluster: System) -> Iterator[System]:
    """The session's system; after each case its pods are gone and its ledger holds nothing."""
    yield running_cluster
    running_cluster.check_invariants()
    running_cluster.delete_all()
    running_cluster.check_invariants()
