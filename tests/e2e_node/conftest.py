"""One real node per session, with our services beside it; skipped if it can't run."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hamilocal.supervisor.ports import free_port
from hamilocal.system.kubernetes import scheduler_configuration
from hamilocal.system.options import LocalNode, UpOptions, fakegpu_config

from tests import measured
from tests.control_plane import Assets, control_plane, node_user
from tests.e2e.conftest import kubernetes_client
from tests.e2e.system import System, hamictl, wait
from tests.e2e_node.dra import claims
from tests.e2e_node.node_system import CARDS, Agent, KubeScheduler, NodeSystem
from tests.real_node.containerd import Cdi
from tests.real_node.node import real_node, workload_image
from tests.waiting import PATIENCE_S

NODE = "real"
RUNTIME_VARIABLE = "HAMI_CONTAINERD"
"""Folder with the programs of another containerd than the machine's own, such as one with CDI."""
# Earlier kubelets know only CRI v1alpha2, which containerd 2 no longer speaks.
NEW_CRI_SINCE = (1, 23)
NATIVE = Path(__file__).resolve().parents[2] / "native"


@pytest.fixture(scope="session")
def node_assets(kubernetes_assets: Assets) -> Assets:
    """The binaries, if a kubelet can run."""
    if os.geteuid() != 0:
        pytest.skip("a real kubelet needs root")
    if not (kubernetes_assets.folder / "kubelet").exists():
        pytest.skip(f"{kubernetes_assets.folder} (KUBEBUILDER_ASSETS) holds no kubelet")
    for program in ("containerd", "runc"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    return kubernetes_assets


@pytest.fixture(scope="session")
def other_runtime() -> Path | None:
    """The programs of the containerd that is named; None: the machine's own is meant."""
    named = os.environ.get(RUNTIME_VARIABLE)
    return Path(named) if named else None


@pytest.fixture(scope="session")
def running_node(node_assets: Assets, other_runtime: Path | None) -> Iterator[NodeSystem]:
    """Control plane, our services, a kubelet of the node `real`, and its node-agent."""
    if node_assets.version < NEW_CRI_SINCE and major_of(other_runtime) >= 2:
        pytest.skip(
            f"{RUNTIME_VARIABLE} is a containerd 2, which knows CRI v1 alone, and this kubelet "
            f"{'.'.join(map(str, node_assets.version))} knows v1alpha2 alone"
        )
    # Short: sockets allow no long paths.
    folder = Path(tempfile.mkdtemp(prefix="hami-node-", dir="/run"))
    folder.chmod(0o755)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        user = node_user(NODE)
        plane = stack.enter_context(
            control_plane(folder / "plane", assets=node_assets, users=[user])
        )
        home = folder / "system"
        stack.callback(hamictl, home, "down")
        flags = ("--nodes", "0", "--external-node", NODE, "--gpu-policy", "binpack")
        kubeconfig = ("--kubeconfig", str(plane.kubeconfig))
        dra = "on" if node_assets.version >= claims.SINCE else "off"
        failpoints = folder / "failpoints"
        failpoints.touch()
        text = hamictl(
            home,
            *("up", "--json", "--detach", "--no-demo", *flags, *kubeconfig),
            environment={
                "HAMI_FAILPOINTS_FILE": str(failpoints),
                "HAMI_WEBHOOK_DRA": dra,
                "HAMI_SCHEDULER_CLAIM_TEMPLATES": dra,
            },
        )
        described = json.loads(text)
        configuration = scheduler_configuration(
            kubeconfig_path="",
            extender_url=described["scheduler_url"],
            scheduler_name="hami-scheduler",
            resources=UpOptions().vendors().resource_names,
        )
        plan = plane.scheduler_plan(
            configuration["extenders"], profiles=("default-scheduler", "hami-scheduler")
        )
        kube_scheduler = KubeScheduler(plan)
        stack.callback(kube_scheduler.stop)
        node = stack.enter_context(
            real_node(
                folder / "node",
                binary=node_assets.folder / "kubelet",
                version=node_assets.version,
                kubeconfig=plane.server.kubeconfigs[user.name],
                name=NODE,
                images=[workload_image(folder / "workload.tar", native=NATIVE)],
                runtime=other_runtime,
                cdi=None if other_runtime is None else Cdi(enabled=True, directory=folder / "cdi"),
            )
        )
        _write_cards(folder / "fakegpu")
        [external] = described["external_nodes"]
        agent = Agent(folder, external["node_agent_env"], native=NATIVE)
        stack.callback(agent.kill)
        agent.start()
        api = stack.enter_context(kubernetes_client(plane.kubeconfig))
        system = NodeSystem(
            described=described,
            folder=home,
            api=api,
            node=node,
            agent=agent,
            kube_scheduler=kube_scheduler,
            failpoints=failpoints,
        )
        system.wait_until_offered()
        version = system.get(f"/api/v1/nodes/{NODE}")["status"]["nodeInfo"]
        measured.note(f"kubelet {version['kubeletVersion']}, {version['containerRuntimeVersion']}")
        yield system


def major_of(programs: Path | None) -> int:
    """Return containerd's major version: `containerd github.com/containerd/containerd/v2 2.1.9`."""
    command = "containerd" if programs is None else str(programs / "containerd")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    return int(re.findall(r" v?(\d+)\.\d+", done.stdout)[0])


@pytest.fixture
def system(running_node: NodeSystem) -> Iterator[NodeSystem]:
    """The session's system; after each case its pods are gone and its ledger holds nothing."""
    yield running_node
    running_node.check_invariants()
    running_node.delete_all()
    running_node.check_invariants()


@pytest.fixture(scope="session")
def programs(other_runtime: Path | None) -> Path:
    """Folder of the programs of a containerd that knows CDI."""
    if other_runtime is None:
        pytest.skip(f"{RUNTIME_VARIABLE} names no folder of a containerd 1.7 or newer")
    if os.geteuid() != 0:
        pytest.skip("containerd needs root")
    return other_runtime


@pytest.fixture
def late(programs: Path, system: NodeSystem) -> Iterator[NodeSystem]:
    """The system with an agent that detected that it may bind late."""
    del programs
    system.agent.stop()
    system.agent.start(
        HAMI_NODE_AGENT_BINDING="auto",
        HAMI_NODE_AGENT_CRI_SOCKET=str(system.node.socket),
        HAMI_NODE_AGENT_CDI_DIR=str(system.folder.parent / "cdi"),
    )
    system.wait_until_offered()
    yield system
    system.delete_all()
    system.agent.stop()
    system.agent.start()
    system.wait_until_offered()


@pytest.fixture
def claiming(system: NodeSystem, other_runtime: Path | None) -> Iterator[NodeSystem]:
    """The system with an agent whose cards are DRA devices."""
    if other_runtime is None:
        pytest.skip(f"{RUNTIME_VARIABLE} names no folder of a containerd with CDI")
    version = system.get("/version")
    if (int(version["major"]), int(version["minor"].rstrip("+"))) < claims.SINCE:
        pytest.skip(f"Kubernetes {version['gitVersion']} has no parts of devices, 1.36 has")
    system.agent.stop()
    claims.start(system)
    made = system.api.post(f"{claims.API}/deviceclasses", json=claims.device_class())
    assert made.status_code in (201, 409), made.text
    claims.wait_until_published(system)
    yield system
    system.delete_all()
    wait(lambda: not claims.descriptions(system), "the device descriptions to go")
    for claim in system.get(claims.CLAIMS)["items"]:
        claims.forget(system, claim["metadata"]["name"])
    for template in system.get(claims.TEMPLATES)["items"]:
        system.api.delete(f"{claims.TEMPLATES}/{template['metadata']['name']}")
    system.plan()
    system.agent.stop()
    system.agent.start()
    system.wait_until_offered()


@pytest.fixture
def controllers(claiming: NodeSystem, node_assets: Assets, tmp_path: Path) -> Iterator[None]:
    """kube-controller-manager: Deployments, claims from templates, and the release of claims."""
    with controller_manager(claiming, node_assets, tmp_path):
        yield


CONTROLLERS = (
    "deployment-controller,replicaset-controller,resourceclaim-controller,"
    "garbage-collector-controller,namespace-controller"
)


@contextmanager
def controller_manager(
    system: System, assets: Assets, folder: Path, controllers: str = CONTROLLERS
) -> Iterator[None]:
    """Run kube-controller-manager inside the block."""
    binary = assets.folder / "kube-controller-manager"
    if not binary.exists():
        pytest.skip(f"{assets.folder} (KUBEBUILDER_ASSETS) holds no kube-controller-manager")
    argv = [
        str(binary),
        f"--kubeconfig={system.described['kubeconfig']}",
        f"--controllers={controllers}",
        "--leader-elect=false",
        f"--secure-port={free_port()}",
        f"--cert-dir={folder}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE_S)


def _write_cards(folder: Path) -> None:
    """The stand-in cards, under one path inside and outside of containers."""
    folder.mkdir()
    folder.chmod(0o777)
    cards = LocalNode(name=NODE, gpus=CARDS, model="NVIDIA A100-SXM4-80GB", memory_mib=81920)
    described = fakegpu_config(cards, system=str(folder), state=str(folder / "state"))
    (folder / "config.json").write_text(json.dumps(described))
