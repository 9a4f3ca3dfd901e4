"""The agent with few rights or servers: as in its manifest, as user nobody, without an API."""

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.node_agent.conftest import ApiPods, ApiServer
from tests.integration.node_agent.control import Control, grant
from tests.integration.node_agent.machine import CARDS, AgentProcess, Kubelet, Machine, mounts_of
from tests.waiting import eventually

pytestmark = pytest.mark.native

A_0, A_1 = f"{CARDS[0]}-0", f"{CARDS[0]}-1"
NOBODY = 65534
# k8s/base/node-agent.yaml, securityContext.
MANIFEST = "--no-new-privs --bounding-set=-all,+chown,+dac_override,+fowner"
# Rights to read are not tested: the interpreter may be in a user's home.
READS = "--inh-caps=-all,+dac_read_search --ambient-caps=-all,+dac_read_search"
AS_NOBODY = f"--no-new-privs --reuid={NOBODY} --regid={NOBODY} --clear-groups {READS}"


class Confined(AgentProcess):
    """In a mount namespace whose root can't be written, but for the node's own folders."""

    def __init__(self, machine: Machine, privileges: str) -> None:
        super().__init__(machine)
        root = machine.root
        confine = (
            f"mount --bind {root} {root} && mount -o remount,bind,ro / && "
            f'cd {root} && exec setpriv {privileges} -- "$0" "$@"'
        )
        self.command = (
            *("unshare", "--mount", "--propagation", "private", "sh", "-c", confine),
            *(sys.executable, "-m", "hami_node_agent"),
        )


@pytest.fixture(params=[MANIFEST, AS_NOBODY], ids=["as the manifest has it", "as nobody"])
async def confined(
    request: pytest.FixtureRequest, machine: Machine, kubelet: Kubelet, control: Control
) -> AsyncIterator[Confined]:
    """Run a confined agent; user nobody may use the node's folders and kubelet's sockets."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None or shutil.which("unshare") is None:
        pytest.skip("a mount namespace and another user need root, unshare and setpriv")
    machine.extra["TMPDIR"] = "/nowhere"
    if request.param == AS_NOBODY:
        for path in (machine.root, *machine.root.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        # Made for all by another user, as HAMi's plugin did.
    with Confined(machine, request.param) as agent:
        await agent.ready()
        yield agent


async def test_a_pod_gets_its_slice_from_an_agent_that_may_write_nothing_else(
    confined: Confined, kubelet: Kubelet, control: Control, machine: Machine
) -> None:
    await control.announce(grant("a"))
    answer = await kubelet.allocate("a", "main", A_0)
    await kubelet.prestart(A_0)

    limits = Path(mounts_of(answer)["/etc/hami"]) / "limits"
    assert f"memory_bytes {4096 << 20}" in limits.read_text()
    await eventually(lambda: {r.pod_uid for r in control.reports_of("allocated")} == {"a"})
    status = (Path("/proc") / str(confined.pid) / "status").read_text()
    assert ("Uid:\t65534" in status) == ("65534" in " ".join(confined.command))
    assert "ERROR" not in confined.log


async def test_pods_come_and_go_on_while_the_api_server_is_away_and_leave_when_it_is_back(
    api_server: ApiServer,
    api_pods: ApiPods,
    agent: AgentProcess,
    kubelet: Kubelet,
    control: Control,
) -> None:
    await api_pods.create("before", "after")
    before, after = api_pods.uids["before"], api_pods.uids["after"]
    kubelet.pods |= {before: "before", after: "after"}
    await control.announce(grant(before).model_copy(update={"pod_name": "before"}))
    answer = await kubelet.allocate(before, "main", A_0)
    await kubelet.prestart(A_0)

    api_server.stop()
    await control.announce(grant(after, token=2).model_copy(update={"pod_name": "after"}))
    await kubelet.allocate(after, "main", A_1)
    await kubelet.prestart(A_1)
    await kubelet.prestart(A_0)  # a container that starts again
    assert (await asyncio.to_thread(agent.get, "/readyz"))[0] == 200
    # Unknown is not gone.
    assert control.reports_of("gone") == []
    assert (Path(mounts_of(answer)["/etc/hami"]) / "limits").exists()

    await api_server.start()
    await api_pods.delete("before")
    kubelet.forget(before)
    await eventually(lambda: [r.pod_uid for r in control.reports_of("gone")] == [before])
