"""One running system per session: on the emulated API server, or on a real control plane."""

import json
import os
import shutil
import ssl
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

import httpx
import pytest
import yaml
from hamilocal.supervisor.state_file import stop_running
from hamilocal.system.kubernetes import scheduler_configuration
from hamilocal.system.options import UpOptions

from tests import measured
from tests.control_plane import control_plane, find_assets
from tests.e2e.secrets import leaks, secrets_of, written_by
from tests.e2e.system import System, hamictl
from tests.processes import running
from tests.servers import memory_folder
from tests.waiting import PATIENCE_S

USUAL_PODS = """
- {part: 60, gpu: 1, gpucores: 100}
- {part: 40, gpumem_mib: 40960}
"""
SHUFFLED = ("--kubelet-flag", "--shuffle-window-ms", "--kubelet-flag", "100")


@contextmanager
def running_system(
    kind: str,
    *flags: str,
    environment: Mapping[str, str] | None = None,
    extender_verbs: Mapping[str, str] = MappingProxyType({}),
    server_arguments: Sequence[str] = (),
    scheduler_arguments: Sequence[str] = (),
) -> Iterator[System]:
    """`hamictl up` with these flags (and variables, for every process) in a new folder.

    `extender_verbs`: changes of the real kube-scheduler's extender; the arguments are added to
    those of the real kube-apiserver and kube-scheduler.
    """
    folder = Path(tempfile.mkdtemp(prefix="hami-e2e-", dir=memory_folder()))
    folder.chmod(0o755)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        plane = None
        if kind == "real":
            assets = find_assets(Path(os.environ["KUBEBUILDER_ASSETS"]))
            measured.note(f"control plane: Kubernetes {assets.version[0]}.{assets.version[1]}")
            plane = stack.enter_context(
                control_plane(folder / "plane", assets=assets, arguments=server_arguments)
            )
            flags = (*flags, "--kubeconfig", str(plane.kubeconfig))
        home = folder / "system"
        # As `hamictl down` does, which has its own cases.
        stack.callback(stop_running, home / "state.json")
        up = ("up", "--json", "--detach", "--no-demo", *flags)
        text = hamictl(home, *up, environment=environment)
        described = json.loads(text)
        if plane is not None:
            options = UpOptions(
                enable_ascend="--enable-ascend" in flags,
                enable_iluvatar="--enable-iluvatar" in flags,
            )
            configuration = scheduler_configuration(
                kubeconfig_path="",
                extender_url=described["scheduler_url"],
                scheduler_name="hami-scheduler",
                resources=options.vendors().resource_names,
                score_pods_without_cards="--score-pods-without-cards" in flags,
            )
            extenders = [{**each, **extender_verbs} for each in configuration["extenders"]]
            profiles = ("default-scheduler", "hami-scheduler")
            plan = plane.scheduler_plan(extenders, profiles=profiles, arguments=scheduler_arguments)
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


SHARED = pytest.StashKey[list[ExitStack]]()
"""One of each folder."""


@pytest.fixture(scope="session")
def shared(pytestconfig: pytest.Config) -> Iterator[ExitStack]:
    """Systems that end with the last case of their folder."""
    with ExitStack() as stack:
        pytestconfig.stash.setdefault(SHARED, []).append(stack)
        yield stack


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, None, None]:
    """End what cases share with the last of them: an idle system costs 5 % of a processor."""
    yield
    if nextitem is None or not nextitem.path.is_relative_to(Path(__file__).parent):
        end_shared(item.config)


def end_shared(config: pytest.Config) -> None:
    """End the systems that cases share."""
    for stack in config.stash.get(SHARED, []):
        stack.close()


@contextmanager
def checked_system(system: System) -> Iterator[System]:
    """Leave the system without pods, and its ledger with nothing held."""
    yield system
    system.check_invariants()
    system.delete_all()
    system.check_invariants()


@contextmanager
def no_secret_written(system: System) -> Iterator[None]:
    """Look for secrets in the end, in everything that all cases did to the system."""
    yield
    assert leaks(secrets_of(system), written_by(system)) == []


@pytest.fixture(scope="session")
def running_cluster(
    cluster_kind: str, shared: ExitStack, tmp_path_factory: pytest.TempPathFactory
) -> System:
    """Run three nodes with four cards each, with a fixed file of usual pods."""
    file: Path = tmp_path_factory.mktemp("mix") / "usual.yaml"
    file.write_text(USUAL_PODS)
    environment = {"HAMI_SCHEDULER_USUAL_PODS_FILE": str(file)}
    system = shared.enter_context(running_system(cluster_kind, environment=environment))
    shared.enter_context(no_secret_written(system))
    return system


@pytest.fixture
def system(running_cluster: System) -> Iterator[System]:
    """The session's system; after each case its pods are gone and its ledger holds nothing."""
    with checked_system(running_cluster) as system:
        yield system


@pytest.fixture(scope="session")
def running_crowd(cluster_kind: str, shared: ExitStack) -> System:
    """One node with ten cards, which admits pods in any order and binds late."""
    flags = ("--nodes", "1", "--gpus", "10", "--binding", "late", *SHUFFLED)
    return shared.enter_context(running_system(cluster_kind, *flags))


@pytest.fixture
def crowded(running_crowd: System) -> Iterator[System]:
    """The session's node with ten cards, for many pods; without any before and after."""
    with checked_system(running_crowd) as system:
        yield system
