"""A thousand concurrent pods by claims, on a real control plane whose nodes are played."""

import pytest

from bench.pods.agreement import differences
from bench.pods.system import CLAIMS, Wanted, system
from tests import measured
from tests.control_plane import Assets

pytestmark = pytest.mark.slow

NODES, PODS = 100, 1000


async def test_a_thousand_pods_by_claims_all_run_and_ledger_claims_and_pods_agree(
    kubernetes_assets: Assets,
) -> None:
    if kubernetes_assets.version < (1, 36):
        pytest.skip("parts of devices are in Kubernetes 1.36 and newer")
    async with system(Wanted(nodes=NODES, claims=True)) as bench:
        ran_s, _ = await bench.round(CLAIMS, PODS)
        await bench.wait_until_idle()
        assert await differences(bench.api, bench.servers.postgres) == []
    assert len(ran_s) == PODS
    measured.note(
        f"{PODS} pods by claims at once on {NODES} nodes: the last one ran after "
        f"{ran_s[-1]:.0f} s, half of them after {ran_s[PODS // 2]:.0f} s"
    )
