"""`hamictl dump` and `hamictl replay --from ledger` on a real ledger, as its reader."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from hamicommon.domain.ids import PodUid
from hamicommon.domain.requests import ContainerRequest, DeviceRequest, HostRequest, PodRequest
from hamicommon.explain.record import request_json
from hamictl.__main__ import app
from hamictl.exit_codes import ExitCode
from typer.testing import CliRunner, Result

HISTORY = """
INSERT INTO nodes (name) VALUES ('n1'), ('n2');
INSERT INTO nodes (name, gone_at) VALUES ('gone', now());
INSERT INTO devices (uuid, node, vendor, index, type, slots, memory_mib, core_percent,
       ceiling_slots, ceiling_memory_mib, ceiling_core_percent, healthy, present)
  SELECT 'GPU-' || node || i, node, 'NVIDIA', i, 'A100', 10, 1000, 100, 10, 1000, 100, true,
         node <> 'gone' FROM unnest(ARRAY['n1', 'n2', 'gone']) AS node, generate_series(0, 1) AS i;
-- From two days ago on a pod every hour, each for five hours; every tenth came to nothing at first.
CREATE TEMP TABLE made AS
  SELECT i, md5('a' || i)::uuid AS id, 'pod-' || i AS uid,
         now() - interval '2 days' + i * interval '1 hour' AS at FROM generate_series(0, 47) AS i;
INSERT INTO allocations (id, pod_uid, namespace, pod_name, attempt, node, state, reserved_at,
                         ended_at)
  SELECT id, uid, 'team', uid, 1, 'n1',
         CASE WHEN i < 43 THEN 'released' ELSE 'allocated' END, at + interval '10 minutes',
         CASE WHEN i < 43 THEN at + interval '5 hours' END FROM made;
INSERT INTO allocation_devices (allocation_id, container_index, position, container_name, role,
                                device_uuid, vendor, memory_mib, core_percent)
  SELECT id, 0, 0, 'main', 'app', 'GPU-n10', 'NVIDIA', 500, 50 FROM made;
"""
ASKED = PodRequest(
    uid=PodUid(""),
    namespace="team",
    name="",
    containers=(
        ContainerRequest(
            name="main",
            role="app",
            requests=(DeviceRequest(vendor="NVIDIA", count=1, memory_mib=500, core_percent=50),),
        ),
    ),
    host=HostRequest(cpu_milli=2000),
)
DECIDED = """
INSERT INTO decisions (at, last_at, pod_uid, namespace, pod_name, outcome, node, request)
  SELECT at, at, uid, 'team', uid, 'refused', NULL, $1::jsonb FROM made WHERE i >= 24
  UNION ALL
  SELECT at + interval '10 minutes', at + interval '10 minutes', uid, 'team', uid, 'placed', 'n1',
         $1::jsonb FROM made WHERE i >= 24
  UNION ALL
  SELECT now() - interval '3 hours', now() - interval '2 hours', 'never', 'team', 'never',
         'refused', NULL, $1::jsonb
"""


@pytest.fixture
async def ledger(
    postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[str]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HAMI_POSTGRES_DSN", postgres_dsn)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    connection = await asyncpg.connect(postgres_dsn)
    await connection.execute(HISTORY)
    await connection.execute(DECIDED, json.dumps(request_json(ASKED)))
    yield postgres_dsn
    await connection.close()


async def hamictl(*arguments: str) -> Result:
    """Run the command in a thread: it has its own event loop."""
    return await asyncio.to_thread(CliRunner().invoke, app, list(arguments))


async def test_a_dump_has_the_pods_with_their_times_and_the_cards(ledger: str) -> None:
    result = await hamictl("dump", "--since", "30d")

    assert result.exit_code == 0, result.output
    period, *lines = map(json.loads, result.output.splitlines())
    assert period["kind"] == "history"
    nodes = [line for line in lines if line["kind"] == "node"]
    assert [(node["name"], len(node["cards"])) for node in nodes] == [("n1", 2), ("n2", 2)]
    pods = {line["uid"]: line for line in lines if line["kind"] == "pod"}
    assert len(pods) == 49
    known, forgotten, never = pods["pod-30"], pods["pod-3"], pods["never"]
    assert known["started_s"] - known["arrived_s"] == pytest.approx(600, abs=1)
    assert known["ended_s"] - known["arrived_s"] == pytest.approx(5 * 3600, abs=1)
    assert (known["host"]["cpu_milli"], known["granted_only"]) == (2000, False)
    assert (forgotten["host"]["cpu_milli"], forgotten["granted_only"]) == (0, True)
    assert forgotten["containers"][0]["requests"][0]["memory_mib"] == 500
    assert never["started_s"] is None
    assert never["gone_s"] - never["arrived_s"] == pytest.approx(3600, abs=1)
    assert pods["pod-45"]["ended_s"] is None


async def test_only_what_was_held_since_then_is_dumped(ledger: str) -> None:
    result = await hamictl("dump", "--since", "6h")

    pods = [line for line in map(json.loads, result.output.splitlines()) if line["kind"] == "pod"]
    # The last five still run; 38 to 42 ended in the last six hours, some a moment after they began.
    assert {pod["uid"] for pod in pods} == {*(f"pod-{i}" for i in range(38, 48)), "never"}
    assert next(p["arrived_s"] for p in pods if p["uid"] == "pod-38") == 0


async def test_another_policy_is_asked_about_ones_own_history(ledger: str) -> None:
    result = await hamictl(
        "replay", "--from", "ledger", "--since", "30d", "--policy", "binpack,spread,fragmentation"
    )
    assert result.exit_code == 0, result.output
    assert "49 pods ask for" in result.output
    text = " ".join(result.output.split())
    assert "UTC fragmentation would have had as many card-hours in use as binpack; " in text
    assert "as many pods would have had to wait, and as many pods would never have got a" in text
    assert "1 pod never got a place in truth" in text
    assert "Of 24 pods only what was granted is known" in text
    assert "The CPU of 2 nodes is not known" in text


async def test_a_dump_is_replayed_elsewhere_and_on_the_cards_that_are_there_now(
    ledger: str, tmp_path: Path
) -> None:
    dumped = tmp_path / "history.jsonl"
    dumped.write_text((await hamictl("dump")).output)
    there = await hamictl("replay", "--from", str(dumped), "-o", "json")
    live = await hamictl("replay", "--from", str(dumped), "--nodes", "live", "-o", "json")

    assert (there.exit_code, live.exit_code) == (0, 0), there.output + live.output
    [found] = json.loads(there.output)["loads"]
    assert found["policies"] == json.loads(live.output)["loads"][0]["policies"]
    assert found["policies"]["binpack"]["runs"][0]["arrived"] == 49


async def test_a_ledger_that_is_away_is_one_sentence(
    ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HAMI_POSTGRES_DSN", "postgresql://hami@127.0.0.1:1/hami")
    result = await hamictl("dump")

    assert result.exit_code == ExitCode.UNREACHABLE
    assert result.stderr.startswith("hamictl: Postgres: ")
    assert result.stderr.count("\n") == 1
