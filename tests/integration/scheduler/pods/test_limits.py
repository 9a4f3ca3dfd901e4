"""Nodes' findings on limits, in a real ledger and at an API server: history, events, the end."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hami_scheduler.adapters.kubernetes import KubernetesPodApi
from hami_scheduler.adapters.postgres.housekeeping import PostgresLimits, PostgresRetention
from hami_scheduler.adapters.postgres.queries import PostgresQueries
from hami_scheduler.api.explain import limit_note
from hami_scheduler.enforcement.checks import LimitChecks
from hami_scheduler.enforcement.periods import EvictionPolicy
from hami_scheduler.metrics import SchedulerInstruments
from hami_scheduler.pod_ending import PodEnder
from hami_scheduler.pod_events import Announcer, LogLimit
from hami_scheduler.ports.cluster import PodEvent
from hamicommon.bus.client import Message
from hamicommon.errors import InvalidRequest, NotFound
from hamicommon.events import LimitCheck, LimitFinding, limits_subject
from hamicommon.k8s.client import KubeApi, open_kube_api
from hamicommon.k8s.types import Json
from hamicommon.ledger.database import Database, open_database
from hamicommon.settings import PostgresSettings

NODE = "node-1"


def now() -> datetime:
    return datetime.now(UTC)


@dataclass
class Stage:
    """The consumer, and all that it writes to."""

    database: Database
    api: KubeApi
    pods: dict[tuple[str, str], Json] = field(default_factory=dict)
    events: list[PodEvent] = field(default_factory=list)
    instruments: SchedulerInstruments = field(default_factory=SchedulerInstruments)
    per_minute: int = 5
    sequence: int = 0

    def emit(self, event: PodEvent) -> None:
        self.events.append(event)

    def checks(self, *, evict: bool = False) -> LimitChecks:
        """Build the checks of a replica that has just begun."""
        policy = EvictionPolicy(after_s=30, per_minute=self.per_minute)
        return LimitChecks(
            history=PostgresLimits(self.database),
            pod_named=lambda namespace, name: self.pods.get((namespace, name)),
            announcer=Announcer(self),
            instruments=self.instruments,
            log_limit=LogLimit(),
            ender=PodEnder(KubernetesPodApi(self.api)),
            policy=policy if evict else None,
        )

    async def pod(self, name: str, node: str = NODE) -> str:
        body: Json = {
            "metadata": {"name": name},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "none"}]},
        }
        made = await self.api.create("/api/v1/namespaces/default/pods", body)
        self.pods["default", name] = made
        return str(made["metadata"]["uid"])

    def finding(self, name: str, **fields: Any) -> LimitFinding:
        known: dict[str, Any] = {
            "pod_uid": self.pods["default", name]["metadata"]["uid"],
            "namespace": "default",
            "pod": name,
            "container": "main",
            "uuid": "GPU-1",
            "state": "exceeded",
            "since": now() - timedelta(seconds=60),
            "held_mib": 9000,
            "peak_mib": 9000,
            "granted_mib": 4096,
            "violating": True,
            "reason": "its processes hold 9000 MiB",
        }
        return LimitFinding(**(known | fields))

    def message(
        self, *findings: LimitFinding, agent: str = "a", settled: bool = True, age_s: float = 0.0
    ) -> Message:
        self.sequence += 1
        check = LimitCheck(
            node=NODE,
            agent_id=agent,
            sequence=self.sequence,
            checked_at=now(),
            containers=3,
            settled=settled,
            findings=findings,
        )
        return Message(
            subject=limits_subject(NODE),
            data=check.model_dump_json().encode(),
            stream_sequence=self.sequence,
            deliveries=1,
            received_at=now() - timedelta(seconds=age_s),
        )

    async def rows(self, columns: str = "pod_name, state, ended_at IS NULL AS lasts") -> list[Any]:
        found = await self.database.fetch(f"SELECT {columns} FROM limit_periods ORDER BY id")
        return [tuple(row) for row in found]

    async def drift(self) -> list[str]:
        found = await self.database.fetch('SELECT "class" FROM drift_journal ORDER BY id')
        return [row["class"] for row in found]

    async def recorded_before(self, seconds: float) -> None:
        """Set the first report back by this many seconds."""
        await self.database.fetch(
            "UPDATE limit_periods SET recorded_at = now() - make_interval(secs => $1)", seconds
        )

    async def there(self, name: str) -> Json | None:
        try:
            return await self.api.get(f"/api/v1/namespaces/default/pods/{name}")
        except NotFound:
            return None


@pytest.fixture
async def stage(postgres_dsn: str, kubeconfig_file: Path) -> AsyncIterator[Stage]:
    settings = PostgresSettings(dsn=postgres_dsn)  # type: ignore[arg-type]
    async with (
        open_database(settings, application="test") as database,
        open_kube_api(kubeconfig_file) as api,
    ):
        made = Stage(database, api)
        yield made
        for _, name in made.pods:
            if await made.there(name):
                path = f"/api/v1/namespaces/default/pods/{name}"
                await api.delete(path, {"gracePeriodSeconds": 0})


async def test_a_violation_is_one_row_one_line_of_drift_and_one_event(stage: Stage) -> None:
    await stage.pod("thief")
    checks = stage.checks()
    for _ in range(3):
        await checks.handle(stage.message(stage.finding("thief")))
    assert await stage.rows() == [("thief", "exceeded", True)]
    assert await stage.drift() == ["limit-exceeded"]
    assert [(e.reason, e.warning) for e in stage.events] == [("LimitExceeded", True)]
    assert "its processes hold 9000 MiB" in stage.events[0].message

    await checks.handle(stage.message())
    assert await stage.rows() == [("thief", "exceeded", False)]
    uid = stage.pods["default", "thief"]["metadata"]["uid"]
    [row] = await PostgresQueries(stage.database).limits(uid)
    note = limit_note(row)
    assert note.startswith("limits exceeded of container main from ")


async def test_what_is_unknown_is_history_and_nobodys_fault(stage: Stage) -> None:
    await stage.pod("dark")
    found = stage.finding("dark", state="unknown", held_mib=None, violating=False)
    await stage.checks(evict=True).handle(stage.message(found))
    await stage.recorded_before(100)
    await stage.checks(evict=True).handle(stage.message(found))
    assert await stage.rows() == [("dark", "unknown", True)]
    assert (await stage.drift(), stage.events) == ([], [])
    assert await stage.there("dark")


async def test_a_node_is_believed_about_its_own_pods_alone(stage: Stage) -> None:
    await stage.pod("elsewhere", node="node-2")
    await stage.pod("here")
    forged = stage.finding("here", pod_uid="another")
    await stage.checks().handle(stage.message(stage.finding("elsewhere"), forged))
    assert await stage.rows() == []
    message = stage.message(stage.finding("here"))
    with pytest.raises(InvalidRequest, match="came on"):
        await stage.checks().handle(
            Message(
                subject=limits_subject("node-2"),
                data=message.data,
                stream_sequence=1,
                deliveries=1,
            )
        )


async def test_an_older_report_and_an_agent_that_has_only_begun_change_nothing(
    stage: Stage,
) -> None:
    await stage.pod("thief")
    checks = stage.checks()
    older = stage.message()
    await checks.handle(stage.message(stage.finding("thief")))
    await checks.handle(older)
    stage.sequence = 0
    await checks.handle(stage.message(agent="b", settled=False))
    assert await stage.rows() == [("thief", "exceeded", True)]
    # The same agent's last run, overtaken by the next.
    late = stage.message(agent="a", age_s=60)
    await checks.handle(late)
    assert await stage.rows() == [("thief", "exceeded", True)]


async def test_who_comes_and_goes_fills_no_table(stage: Stage) -> None:
    await stage.pod("flaps")
    checks = stage.checks()
    for _ in range(20):
        await checks.handle(stage.message(stage.finding("flaps")))
        await checks.handle(stage.message())
    assert len(await stage.rows()) == 1
    assert len(await stage.drift()) == 1
    assert len(stage.events) == 1


async def test_periods_of_a_silent_node_end_when_they_were_last_seen(stage: Stage) -> None:
    await stage.pod("lost")
    checks = stage.checks()
    await checks.handle(stage.message(stage.finding("lost")))
    await checks.close_silent()
    assert await stage.rows("ended_at IS NULL") == [(True,)]
    await stage.database.fetch("UPDATE limit_periods SET seen_at = now() - interval '1 hour'")
    await checks.close_silent()
    assert await stage.rows("ended_at = greatest(seen_at, began_at)") == [(True,)]


async def test_the_pod_is_ended_at_the_second_look_and_nobody_else(stage: Stage) -> None:
    await stage.pod("thief")
    await stage.pod("beside")
    await stage.checks(evict=True).handle(stage.message(stage.finding("thief")))
    assert await stage.there("thief")
    await stage.recorded_before(20)
    # Another replica than the one that began the period.
    await stage.checks(evict=True).handle(stage.message(stage.finding("thief"), age_s=16))
    assert await stage.there("thief"), "on a stale report"
    await stage.checks(evict=True).handle(stage.message(stage.finding("thief", violating=False)))
    assert await stage.there("thief"), "while it is well"

    await stage.checks(evict=True).handle(stage.message(stage.finding("thief")))
    left = await stage.there("thief")
    assert left is None or left["metadata"].get("deletionTimestamp")
    if left is not None:
        conditions = {c["type"]: c for c in left["status"]["conditions"]}
        assert conditions["DisruptionTarget"]["reason"] == "LimitExceeded"
        assert "9000 MiB" in conditions["DisruptionTarget"]["message"]
    assert [e.reason for e in stage.events] == ["LimitExceeded", "LimitEviction"]
    assert await stage.rows("evicted_at IS NOT NULL, eviction_problem") == [(True, "")]
    beside = await stage.there("beside")
    assert beside is not None
    assert "deletionTimestamp" not in beside["metadata"]


async def test_so_many_pods_are_ended_in_a_minute_and_a_dead_replicas_work_goes_on(
    stage: Stage,
) -> None:
    stage.per_minute = 1
    names = ("one", "two")
    for name in names:
        await stage.pod(name)
    found = [stage.finding(name) for name in names]
    await stage.checks(evict=True).handle(stage.message(*found))
    await stage.recorded_before(20)
    history = PostgresLimits(stage.database)
    [first, second] = [row[0] for row in await stage.rows("id")]
    assert await history.claim_eviction(first, per_minute=1, again_after_s=60)
    assert not await history.claim_eviction(second, per_minute=1, again_after_s=60)
    await stage.checks(evict=True).handle(stage.message(*found))
    assert all([await stage.there(name) for name in names])

    # The claimer of the first died before it deleted: another replica continues a minute later.
    await stage.database.fetch(
        "UPDATE limit_periods SET evicting_at = now() - interval '61 seconds'"
        " WHERE evicting_at IS NOT NULL"
    )
    await stage.checks(evict=True).handle(stage.message(*found))
    ended = [name for name in names if _ends(await stage.there(name))]
    assert len(ended) == 1


def _ends(pod: Json | None) -> bool:
    return pod is None or "deletionTimestamp" in pod["metadata"]


async def test_a_pod_that_is_another_by_now_is_left_alone(stage: Stage) -> None:
    await stage.pod("name")
    found = stage.finding("name")
    await stage.checks(evict=True).handle(stage.message(found))
    await stage.recorded_before(20)
    path = "/api/v1/namespaces/default/pods/name"
    await stage.api.delete(path, {"gracePeriodSeconds": 0})
    old = stage.pods["default", "name"]
    await stage.pod("name")
    stage.pods["default", "name"] = old
    await stage.checks(evict=True).handle(stage.message(found))
    assert await stage.there("name")
    [(problem,)] = await stage.rows("eviction_problem")
    assert problem == "another pod has its name now"


async def test_old_periods_go_in_batches_and_those_that_last_stay(stage: Stage) -> None:
    await stage.pod("old")
    await stage.pod("lasts")
    checks = stage.checks()
    await checks.handle(stage.message(stage.finding("old"), stage.finding("lasts")))
    await checks.handle(stage.message(stage.finding("lasts")))
    await stage.database.fetch(
        "UPDATE limit_periods SET began_at = now() - interval '3 years',"
        " ended_at = ended_at - interval '2 years'"
    )
    assert await PostgresRetention(stage.database).forget("limits", keep_days=400) == 1
    assert await stage.rows("pod_name") == [("lasts",)]
