"""Late binding on a real container runtime: its report on CDI, and containers that use it.

HAMI_CONTAINERD names the containerd under test; tests/real_node/README.md shows how to get one.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hami_node_agent.adapters.kubelet.container_runtime import ContainerRuntime
from hami_node_agent.allocation.binding_way import way_of
from hamicommon.errors import Unavailable

from tests import measured
from tests.e2e.system import slice_of
from tests.e2e_node.node_system import CARDS, SLOTS_PER_CARD, NodeSystem
from tests.processes import running
from tests.real_node import containerd
from tests.real_node.containerd import Cdi

pytestmark = pytest.mark.slow

BURST = CARDS * SLOTS_PER_CARD
BURST_TIMEOUT_S = 240.0
ALL_GONE_S = 400.0
SERVES_S = 30.0
SEED = 510


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Folder with a short path: sockets allow no long ones."""
    folder = Path(tempfile.mkdtemp(prefix="hami-cdi-", dir="/run"))
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("enabled", [True, False], ids=["cdi-on", "cdi-off"])
async def test_what_a_real_runtime_reports_is_the_proof(
    programs: Path, short_folder: Path, enabled: bool
) -> None:
    cdi = Cdi(enabled=enabled, directory=short_folder / "cdi")
    plan = containerd.prepare(short_folder, programs=programs, cdi=cdi)
    with running(plan):
        runtime = ContainerRuntime(Path(plan.url.removeprefix("unix://")))
        deadline = time.monotonic() + SERVES_S
        while True:
            try:
                statement = await runtime.report()
                break
            except Unavailable:
                # It answers before its CRI plugin does.
                assert time.monotonic() < deadline
    way = way_of("v1.31.0", statement, cdi_dir=str(cdi.directory))

    assert way.late is enabled, way
    assert enabled or "enable_cdi is false in its configuration" in way.reason
    elsewhere = way_of("v1.31.0", statement, cdi_dir="/nowhere")
    assert not elsewhere.late
    measured.note(f"binding auto, enable_cdi {str(enabled).lower()}: {way}")


def test_pods_of_different_sizes_in_one_burst_are_bound_late_and_each_has_its_own(
    late: NodeSystem,
) -> None:
    chance = random.Random(SEED)
    wanted = {f"late-{number}": 500 + chance.randrange(6000) for number in range(BURST)}
    names = list(wanted)
    chance.shuffle(names)
    way = next(
        line for line in late.agent.metrics().splitlines() if line.startswith("hami_node_agent_bin")
    )
    assert 'way="late"' in way, way

    began_s = time.monotonic()
    for name in names:
        assert late.create(late.pod_like(name, slice_of(wanted[name], 5))).status_code == 201
    pods = [late.wait_for_phase(name, "Running", timeout_s=BURST_TIMEOUT_S) for name in names]
    took_s = time.monotonic() - began_s

    wrong = [
        line
        for pod in pods
        for line in late.wrong_slice(pod, wanted[pod["metadata"]["name"]], core_percent=5)
    ]
    measured.note(
        f"{BURST} pods of different sizes bound late: all Running after {took_s:.1f} s, "
        f"{len(wrong)} with another's slice; {way}"
    )
    assert wrong == []
    assert "limits rewritten" not in late.agent.log
    late.delete(*names, timeout_s=ALL_GONE_S)
