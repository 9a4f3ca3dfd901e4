"""Doctor's findings about unavailable parts, in the order in which they are needed."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from hami_node_agent.bootstrap.late_binding import binding_way
from hami_node_agent.config.settings import Settings as AgentSettings
from hamictl.__main__ import app
from hamictl.commands.doctor import (
    SET_TO_LOCK,
    _backend,
    _silent,
    behind,
    binding_finding,
    examine_parts,
    settings_finding,
)
from hamictl.commands.installed_parts import (
    InstalledObjects,
    PartState,
    findings,
    missing,
    not_ready,
    well,
)
from hamictl.scheduler_client import SchedulerAddress, metrics_address
from hamictl.target import Installation
from typer.testing import CliRunner

from tests import installation_state as states
from tests.installation_state import APPS, CASES, JOBS, NAMESPACE, ORDER, PLACE, State

AWAY = "http://127.0.0.1:1"
PARTS = ["API server", "Postgres", "Redis", "NATS", "scheduler", "agents", "metrics"]
BY_THE_SCHEDULER = ["ledger", "settings"]
"""Parts that only the scheduler knows of."""
NOW = datetime(2026, 11, 20, 14, 5, tzinfo=UTC)


def installation(**backends: str) -> Installation:
    return Installation(
        kubeconfig=None,
        scheduler=SchedulerAddress(url=AWAY, log="scheduler.log", restarts=2),
        postgres_dsn="",
        local=True,
        metrics=metrics_address(AWAY),
        backends=backends,
    )


async def test_each_part_that_is_away_is_named_with_what_to_do() -> None:
    found = await examine_parts(installation(redis="redis://:secret@127.0.0.1:1/0"))

    assert [each.part for each in found] == [*PARTS, *BY_THE_SCHEDULER]
    assert {(each.state, each.detail) for each in found[len(PARTS) :]} == {
        (PartState.UNKNOWN, f"scheduler did not answer at {AWAY}")
    }
    found = found[: len(PARTS)]
    states = {each.part: each.state for each in found}
    assert states["Postgres"] is states["NATS"] is PartState.UNKNOWN
    del states["Postgres"], states["NATS"]
    assert states.pop("agents") is PartState.UNKNOWN
    assert set(states.values()) == {PartState.MISSING}
    assert not any("secret" in each.detail for each in found)


async def test_a_local_service_that_is_away_is_looked_for_in_its_log_and_not_in_a_cluster() -> None:
    found = {each.part: each for each in await examine_parts(installation())}

    scheduler, agents = found["scheduler"], found["agents"]
    assert "the local system's supervisor restarts it; it was restarted 2 times" in (
        scheduler.detail
    )
    assert scheduler.next_step == "scheduler.log"
    assert "port-forward" not in scheduler.detail
    assert (agents.state, agents.next_step) == (PartState.UNKNOWN, "repair scheduler first")


def test_what_was_set_without_effect_is_a_line_that_is_wrong_and_nothing_missing() -> None:
    def row(kind: str, number: int) -> dict[str, object]:
        return {
            "kind": kind,
            "namespace": "team" if kind == "ResourceQuota" else None,
            "name": f"x{number}",
            "setting": "hami.io/device-cordon",
            "problem": f"problem {number}",
        }

    assert settings_finding([]).state is PartState.WELL
    found = settings_finding([row("ResourceQuota", 1), *(row("Node", n) for n in range(2, 6))])

    assert found.state is PartState.WRONG
    assert found.detail == (
        "ResourceQuota team/x1: problem 1; "
        "Node x2, annotation hami.io/device-cordon: problem 2; "
        "Node x3, annotation hami.io/device-cordon: problem 3; and 2 more"
    )
    assert found.next_step == "docs/tasks.md (Quotas), docs/operations.md (One card)"


def test_a_part_that_only_lacks_an_earlier_one_is_unknown_and_names_that_one() -> None:
    no_store = missing("Postgres", "0 of 1 pods are ready", "describe it")
    scheduler, agents = well("scheduler", "ready"), well("agents", "ready")
    asked = [
        missing("scheduler", "Postgres is away", "a page"),
        missing("agents", "Postgres is away"),
    ]

    found = behind([(no_store, no_store), (scheduler, asked[0]), (agents, asked[1])])

    assert found[0] == no_store
    assert [each.state for each in found[1:]] == [PartState.UNKNOWN] * 2
    assert {each.next_step for each in found[1:]} == {"repair Postgres first"}
    assert behind([(scheduler, asked[0])]) == [asked[0]]


async def test_a_server_that_takes_connections_is_well() -> None:
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        found = await _backend("NATS", f"nats://u:p@127.0.0.1:{port}", "its log")

    assert found.state is PartState.WELL


async def test_of_several_servers_in_one_address_none_is_asked() -> None:
    found = await _backend("Postgres", "postgresql://u:p@pg-1:5432,pg-2:5432/hami", "its log")

    assert found.state is PartState.UNKNOWN
    assert "u:p" not in found.detail


@pytest.mark.parametrize(
    ("workload", "text"),
    [
        ({"spec": {"replicas": 2}, "status": {"readyReplicas": 2}}, ""),
        ({"spec": {"replicas": 2}, "status": {}}, "0 of 2 pods are ready"),
        ({"status": {"desiredNumberScheduled": 3, "numberReady": 1}}, "1 of 3 pods are ready"),
        ({"spec": {"replicas": 0}}, "scaled to 0"),
    ],
)
def test_a_workload_is_ready_when_all_its_pods_are(workload: dict[str, object], text: str) -> None:
    assert not_ready(workload) == text


def test_an_agent_is_silent_after_two_minutes_and_one_of_hami_never_is() -> None:
    def row(name: str, ago_s: int, source: str = "agent") -> dict[str, object]:
        at = NOW - timedelta(seconds=ago_s)
        return {"name": name, "source": source, "inventory_at": at.isoformat()}

    rows = [row("fresh", 100), row("silent", 150), row("hami", 9999, "annotation")]
    never = {"name": "never", "source": "agent", "inventory_at": None}

    assert [name for name, _ in _silent([*rows, never], NOW)] == ["silent", "never"]


def test_the_command_ends_with_6_and_prints_in_ascii(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["doctor", "--ascii"], env={"HAMI_FOLDER": str(tmp_path), "KUBECONFIG": None}
    )

    assert done.exit_code == 6, done.output
    assert done.stdout.isascii()
    assert done.stdout.splitlines()[1].startswith("API server  x missing")


def a_node(name: str, binding: str = "") -> dict[str, Any]:
    annotations = {"hami.io/binding": binding} if binding else {}
    return {"metadata": {"name": name, "annotations": annotations}}


LATE = a_node("n1", "late: kubelet v1.36.2, containerd 2.1.9: it supports CDI")
LOCKED = a_node("n2", "lock: binding is set to lock")
OLD = a_node("n3", "lock: kubelet v1.36.2, containerd 1.6.20: CDI is unknown there before 1.7")


def test_a_node_that_can_not_bind_late_is_named_with_the_reason() -> None:
    found = binding_finding([LATE, LOCKED, OLD, a_node("cpu-only")])

    assert found.state is PartState.WRONG
    assert "1 of 3 nodes can't bind late" in found.detail
    assert "n3: kubelet v1.36.2, containerd 1.6.20: CDI is unknown there before 1.7" in found.detail
    assert "n2" not in found.detail


def test_nodes_that_bind_late_or_were_set_otherwise_are_well() -> None:
    found = binding_finding([LATE, LOCKED])

    assert found.state is PartState.WELL
    assert found.detail == "1 nodes bind late, 1 use the node lock, as configured"


def test_without_an_agent_nobody_knows_how_nodes_bind() -> None:
    assert binding_finding([a_node("n1")]).state is PartState.UNKNOWN


async def test_the_reason_of_the_setting_is_the_agents() -> None:
    given = {"node_name": "n", "nats": {"url": "nats://nobody"}, "binding": "lock"}
    way = await binding_way(AgentSettings.model_validate(given), AsyncMock())

    assert way.reason == SET_TO_LOCK


# --- missing parts of an installation in a cluster, from the objects that it has


def make_installed(state: State) -> InstalledObjects:
    def under(path: str) -> list[dict[str, object]]:
        return [each for at, each in state.items() if at.startswith(path)]

    return InstalledObjects(
        namespace=NAMESPACE,
        present=True,
        registration=state.get(states.REGISTRATION),
        workloads={at.rpartition("/")[2]: each for at, each in state.items() if APPS in at},
        pods=under(f"{PLACE}/pods"),
        jobs=under(JOBS),
        refusals=states.refusals(state),
        services=frozenset(at.rpartition("/")[2] for at in state if f"{PLACE}/services" in at),
        trusted=f"{PLACE}/configmaps/hami-ca" in state,
    )


def test_where_everything_is_ready_each_part_is_well_in_the_order_of_their_needs() -> None:
    found = findings(make_installed(states.ready()))

    assert tuple(each.part for each in found) == ORDER
    assert {each.state for each in found} == {PartState.WELL}


@pytest.mark.parametrize("what", CASES)
def test_what_is_broken_is_one_line_with_what_to_do(what: str) -> None:
    breaks, part, detail, step = CASES[what]

    wrong = [
        e
        for e in findings(make_installed(states.break_state(breaks)))
        if e.state is not PartState.WELL
    ]

    assert [(each.part, each.state) for each in wrong] == [(part, PartState.MISSING)]
    assert detail in wrong[0].detail
    assert step in wrong[0].next_step


def test_several_broken_parts_come_in_the_order_in_which_to_repair_them() -> None:
    state = states.ready()
    for what in reversed(CASES):
        if what.startswith("no "):
            CASES[what][0](state)

    wrong = [
        each.part for each in findings(make_installed(state)) if each.state is PartState.MISSING
    ]

    assert wrong == sorted(wrong, key=ORDER.index)
    assert len(wrong) == 8


def test_a_store_of_the_users_own_is_unknown_and_nothing_is_missing() -> None:
    state = states.ready()
    for path in (f"{APPS}/statefulsets/hami-redis", f"{PLACE}/services/hami-redis"):
        del state[path]

    found = {each.part: each.state for each in findings(make_installed(state))}

    assert found.pop("Redis") is PartState.UNKNOWN
    assert set(found.values()) == {PartState.WELL}


def test_who_may_read_nothing_learns_that_and_that_nothing_is_known() -> None:
    blind = InstalledObjects(
        namespace=NAMESPACE,
        present=True,
        registration={},
        workloads=None,
        pods=None,
        jobs=None,
        refusals={},
        services=None,
        trusted=None,
    )

    found = findings(blind)

    assert {each.state for each in found} == {PartState.UNKNOWN}
    assert tuple(each.part for each in found) == ORDER
