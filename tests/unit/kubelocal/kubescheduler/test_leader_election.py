"""One of two schedulers leads."""

import asyncio
from datetime import datetime, timedelta

import pytest
from hamicommon.errors import Unavailable
from hamicommon.k8s.client import open_kube_api
from kubelocal.kubescheduler.configuration import LeaderElection
from kubelocal.kubescheduler.leader_election import Leadership

from tests.control_plane import ApiServer
from tests.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.integration


async def test_one_of_two_leads_and_the_other_follows_when_it_is_gone(
    emulator: ApiServer,
) -> None:
    config = LeaderElection(lease_duration="5s", renew_deadline="4s", retry_period="100ms")
    group = "/apis/coordination.k8s.io/v1"
    lease = f"{group}/namespaces/kube-system/leases/kube-scheduler"
    async with open_kube_api(emulator.kubeconfig) as api:
        first, second = (Leadership(api, config, name) for name in ("first", "second"))
        await first.acquire()
        holding = asyncio.create_task(first.hold())
        waiting = asyncio.create_task(second.acquire())

        async def renewed_at() -> datetime:
            return datetime.fromisoformat((await api.get(lease))["spec"]["renewTime"])

        began = await renewed_at()

        async def led_longer_than_a_lease() -> bool:
            assert not waiting.done()
            return await renewed_at() > began + timedelta(seconds=5)

        await eventually(led_longer_than_a_lease)
        holding.cancel()
        last = await renewed_at()
        await asyncio.wait_for(waiting, PATIENCE_S)
        spec = (await api.get(lease))["spec"]
        assert spec["holderIdentity"] == "second"
        assert spec["leaseTransitions"] == 1
        assert datetime.fromisoformat(spec["acquireTime"]) > last + timedelta(seconds=4)
        with pytest.raises(Unavailable, match="leader election lost"):
            await first.hold()
