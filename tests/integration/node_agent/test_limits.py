"""Limits checked from outside: real programs on the stand-in driver, seen by the real agent."""

import asyncio
import re

import pytest
from hamicommon import events

from tests.integration.node_agent.control import Control
from tests.integration.node_agent.machine import CARDS, AgentProcess
from tests.integration.node_agent.tenants import GRACE_S, Checks, Proc, Tenants, states, until_seen
from tests.waiting import eventually

pytestmark = pytest.mark.native

MIB = 1024 * 1024
GRANTED_MIB = 4096


async def test_who_keeps_to_his_grant_is_enforced(
    tenants: Tenants, agent: AgentProcess, control: Control, checks: Checks
) -> None:
    uid = await tenants.create_with_slice("honest", control)
    program = tenants.program("honest")
    assert program.alloc(GRANTED_MIB * MIB)[0] == 0
    assert program.alloc(MIB)[0] == 2

    await until_seen(agent, "honest", "enforced", "a full slice")
    await asyncio.sleep(5 * GRACE_S)
    assert states(agent) == {"honest": "enforced"}
    assert checks.finding_of(uid) is None
    _, text = agent.get("/metrics")
    assert re.search(r"hami_vgpu_driver_memory_used_bytes\{.*\} 4\.294967296e\+09", text)


async def test_a_program_past_the_library_is_seen_and_then_what_it_holds(
    tenants: Tenants, agent: AgentProcess, control: Control, checks: Checks
) -> None:
    uid = await tenants.create_with_slice("past", control)
    honest = await tenants.create_with_slice("beside", control, device=1)
    beside = tenants.program("beside")
    assert beside.alloc(100 * MIB)[0] == 0
    program = tenants.program("past", preload=False)
    await until_seen(agent, "past", "bypassed", "a program without the library")
    assert program.alloc(20_480 * MIB)[0] == 0
    await until_seen(agent, "past", "exceeded", "20 GiB of a slice of 4 GiB")

    found = await eventually(lambda: _is(checks.finding_of(uid), "exceeded"))
    assert (found.pod, found.namespace, found.container) == ("past", "default", "main")
    assert (found.held_mib, found.granted_mib, found.uuid) == (20_480, GRANTED_MIB, CARDS[0])
    assert found.violating
    assert checks.finding_of(honest) is None
    assert states(agent)["beside"] == "enforced"


async def test_a_card_without_a_grant_is_seen(
    tenants: Tenants, agent: AgentProcess, control: Control, checks: Checks
) -> None:
    """NVIDIA_VISIBLE_DEVICES=all of a pod that asked for no card, and of one that asked for one."""
    nothing = await tenants.create("nothing")
    one = await tenants.create_with_slice("one", control)
    for name, card in (("nothing", CARDS[0]), ("one", CARDS[1])):
        program = tenants.program(name, preload=False, cards=card)
        assert program.alloc(1024 * MIB)[0] == 0
    await until_seen(agent, "nothing", "bypassed", "a pod without a grant")
    for uid, card in ((nothing, CARDS[0]), (one, CARDS[1])):
        found = await eventually(lambda uid=uid: checks.finding_of(uid))
        assert (found.state, found.granted_mib, found.uuid) == ("bypassed", 0, card)
        assert "of which it has no grant" in found.reason


async def test_a_region_that_is_taken_away_multiplies_no_slice_unseen(
    tenants: Tenants, agent: AgentProcess, control: Control
) -> None:
    """`rm` between processes: each counts separately, and only the last is in the region."""
    await tenants.create_with_slice("rm", control)
    for _ in range(3):
        program = tenants.program("rm")
        assert program.alloc(4000 * MIB)[0] == 0
        tenants.region("rm").unlink()
    await until_seen(agent, "rm", "exceeded", "a region removed between three processes")


async def test_a_region_that_is_scribbled_on_hides_no_memory(
    tenants: Tenants, agent: AgentProcess, control: Control
) -> None:
    await tenants.create_with_slice("scribbled", control)
    program = tenants.program("scribbled", preload=False)
    assert program.alloc(8192 * MIB)[0] == 0
    region = tenants.region("scribbled")
    region.write_bytes(b"rubbish!" * 1000)
    await until_seen(agent, "scribbled", "exceeded", "a region full of rubbish")


async def test_processes_of_nobody_are_counted_and_not_blamed(
    tenants: Tenants, proc: Proc, agent: AgentProcess, checks: Checks
) -> None:
    uid = await tenants.create("host")
    program = tenants.program("host", preload=False, cgroup="/system.slice/monitoring.service")
    assert program.alloc(300 * MIB)[0] == 0

    def is_shown() -> bool:
        _, text = agent.get("/metrics")
        return bool(
            re.search(r'hami_node_agent_card_process_memory_bytes\{.*owner="host".*\} 3\.14', text)
        )

    await eventually(is_shown)
    await asyncio.sleep(3 * GRACE_S)
    assert checks.finding_of(uid) is None


async def test_the_agents_restart_loses_nobody_and_blames_nobody(
    tenants: Tenants, agent: AgentProcess, control: Control, checks: Checks
) -> None:
    await tenants.create_with_slice("honest", control)
    cheat = await tenants.create_with_slice("cheat", control, device=1)
    program = tenants.program("honest")
    assert program.alloc(1000 * MIB)[0] == 0
    assert tenants.program("cheat", preload=False).alloc(9000 * MIB)[0] == 0
    await until_seen(agent, "cheat", "exceeded", "before a restart")
    await eventually(lambda: _is(checks.finding_of(cheat), "exceeded"))

    await asyncio.to_thread(agent.stop)
    before = len(checks.messages)
    await agent.start_again()
    await until_seen(agent, "cheat", "exceeded", "after a restart of the agent")
    await eventually(lambda: len(checks.messages) > before and checks.finding_of(cheat))
    after = checks.messages[before:]
    assert not any(check.settled for check in after if not check.findings)
    assert {f.pod for check in after for f in check.findings} == {"cheat"}


def _is(found: events.LimitFinding | None, state: str) -> events.LimitFinding | None:
    return found if found is not None and found.state == state else None
