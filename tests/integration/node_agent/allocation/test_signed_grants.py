"""Grants signed on the pod count where the bus can't be asked, and for that pod alone."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from hamicommon.grants.signing import load_private_key, new_key_pair, sign

from tests.integration.node_agent.conftest import ApiPods
from tests.integration.node_agent.control import Control, grant
from tests.integration.node_agent.machine import CARDS, AgentProcess, Kubelet, Machine, limits_of

pytestmark = [pytest.mark.integration, pytest.mark.native]

A_0 = f"{CARDS[0]}-0"
FORGED = ["another key", "another pod", "another node", "expired"]


@pytest.mark.parametrize("forged", FORGED)
async def test_a_signed_grant_that_is_not_good_for_this_pod_is_refused(
    machine: Machine, kubelet: Kubelet, api_pods: ApiPods, folder: Path, forged: str
) -> None:
    private, public = new_key_pair()
    (folder / "grant.key").write_bytes(new_key_pair()[0] if forged == "another key" else private)
    (folder / "grant.pub").write_bytes(public)
    machine.extra["HAMI_NODE_AGENT_GRANT_PUBLIC_KEY_FILE"] = str(folder / "grant.pub")
    machine.nats_url = "nats://127.0.0.1:9"
    await api_pods.create("a")
    change: dict[str, Any] = {
        "another key": {},
        "another pod": {"pod_uid": "somebody-else"},
        "another node": {"node": "node-2"},
        "expired": {"expires_at": datetime.now(UTC) - timedelta(seconds=1)},
    }[forged]
    bad = grant(api_pods.uids["a"]).model_copy(update=change)
    text = sign(bad, load_private_key(folder / "grant.key"))
    await api_pods.annotate("a", {"hami.io/grant": text})
    agent = AgentProcess(machine)
    agent.start()
    try:
        await agent.ready()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await kubelet.allocate(api_pods.uids["a"], "main", A_0)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert "bus unavailable" in (refused.value.details() or "")
    finally:
        agent.close()


@pytest.mark.parametrize(
    ("ledger", "accepted"), [("answers", False), ("can't be read", True), ("is silent", True)]
)
async def test_a_signed_grant_counts_only_while_the_ledger_cannot_be_asked(
    machine: Machine,
    kubelet: Kubelet,
    control: Control,
    api_pods: ApiPods,
    folder: Path,
    ledger: str,
    accepted: bool,
) -> None:
    """The grant ended while its binder was held up; the pod came all the same (SAFE-3)."""
    private, public = new_key_pair()
    (folder / "grant.key").write_bytes(private)
    (folder / "grant.pub").write_bytes(public)
    machine.extra["HAMI_NODE_AGENT_GRANT_PUBLIC_KEY_FILE"] = str(folder / "grant.pub")
    control.complete = ledger != "can't be read"
    control.answers_snapshots = ledger != "is silent"
    await api_pods.create("a")
    uid = api_pods.uids["a"]
    text = sign(grant(uid), load_private_key(folder / "grant.key"))
    await api_pods.annotate("a", {"hami.io/grant": text})
    agent = AgentProcess(machine)
    agent.start()
    try:
        await agent.ready()
        if accepted:
            assert f"device {CARDS[0]} " in limits_of(await kubelet.allocate(uid, "main", A_0))
            return
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await kubelet.allocate(uid, "main", A_0)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert "bus connected" in (refused.value.details() or "")
    finally:
        agent.close()
