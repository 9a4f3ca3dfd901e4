"""FAULT-10, -39, -42: a second scheduler beside the first one, asked as kube-scheduler asks."""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from hamicommon.k8s.types import Json

from tests.e2e.system import System, wait
from tests.faults.nodes.node import NODE
from tests.faults.pod_path.test_group_faults import SIZE, come
from tests.faults.processes import replica, suspend_process, suspend_service
from tests.faults.stage import Stage, since
from tests.waiting import PATIENCE_S, Unhurried

pytestmark = pytest.mark.row(promise="SAFE-1..3 SAFE-6 LIVE-2")

LOCK_S = 2.0
"""Lifetime of the lock of the replica that is to lose it."""


@pytest.mark.emulator_only
@pytest.mark.row(
    point="FAULT-10",
    fault="two replicas filter and bind the same pods at the same time",
    kind="duplicate",
    answer="one grant each; the other replica keeps it or takes it over",
)
@pytest.mark.slow
def test_f10_two_replicas_decide_the_same_pods(
    system: System, stage: Stage, tmp_path: Path
) -> None:
    with replica(system, tmp_path) as (url, _), suspend_service(system, "kube-scheduler"):
        stage.come(5)
        urls = (system.scheduler_url, url)
        with ThreadPoolExecutor(16) as threads:
            pods = stage.mine()
            answers = [[threads.submit(_filter, each, pod) for each in urls] for pod in pods]
            nodes = [[answer.result() for answer in both] for both in answers]
            decided_s = time.monotonic()
            bound = [
                threads.submit(_bind, each, pod, node)
                for pod, both in zip(pods, nodes, strict=True)
                for each, node in zip(urls, both, strict=True)
            ]
            errors = [answer.result() for answer in bound]
            held = system.sql("SELECT count(*) FROM allocations WHERE ended_at IS NULL")
            assert held == "5"
            pairs = zip(errors[::2], errors[1::2], strict=True)
            assert all("" in both for both in pairs), errors
        stage.settle()
    stage.check()
    stage.report(since(decided_s), more=f"{sum(map(bool, errors))} of 10 bindings gave way")


@pytest.mark.emulator_only
@pytest.mark.row(
    point="FAULT-10",
    fault="two replicas decide on the same group, and bind its members at the same time",
    kind="duplicate",
    answer="all members are granted once",
)
def test_f10_two_replicas_bind_the_same_group(system: System, stage: Stage, tmp_path: Path) -> None:
    with replica(system, tmp_path) as (url, _), suspend_service(system, "kube-scheduler"):
        come(stage, *range(SIZE))
        asked = [(each, pod) for pod in stage.mine() for each in (system.scheduler_url, url)]
        # Each replica's own watch has to show all members first.
        nodes = [
            wait(lambda each=each, pod=pod: _ask(each, pod).nodes, "all to fit")[0]
            for each, pod in asked
        ]
        decided_s = time.monotonic()
        with ThreadPoolExecutor(16) as threads:
            binding = [
                threads.submit(_bind, each, pod, node)
                for (each, pod), node in zip(asked, nodes, strict=True)
            ]
            errors = [answer.result() for answer in binding]
        held = int(system.sql("SELECT count(*) FROM allocations WHERE ended_at IS NULL"))
        assert held == SIZE, errors
    stage.settle()
    stage.check()
    stage.report(since(decided_s), more=f"{sum(map(bool, errors))} of {len(errors)} gave way")


@pytest.mark.emulator_only
@pytest.mark.row(
    point="FAULT-39",
    fault="the lock's holder is stopped past its expiry, and binds then",
    kind="delay",
    answer="each container starts with its own grant, or its pod is ended and made again",
    promise="SAFE-1..3 LIVE-1 LIVE-2",
)
def test_f39_holder_stopped_past_its_expiry(system: System, stage: Stage, tmp_path: Path) -> None:
    redis = system.redis()
    plan = tmp_path / "faults"
    plan.write_text("lock.acquire.after=delay:0.5*1")
    own = {"HAMI_SCHEDULER_LOCK_S": str(LOCK_S), "HAMI_FAILPOINTS_FILE": str(plan)}
    with replica(system, tmp_path, **own) as (url, pid), ThreadPoolExecutor(1) as threads:
        with suspend_service(system, "kube-scheduler"):
            stage.come(1, node=NODE)
            [late] = stage.mine()
            assert _filter(url, late, NODE) == NODE
            answer = threads.submit(_bind, url, late, NODE)
            wait(lambda: redis.exists(f"hami:nodelock:{NODE}"), "the replica to hold the lock")
            stopping = ExitStack()
            stopping.enter_context(suspend_process(pid))
        with stopping:
            wait(lambda: not redis.exists(f"hami:nodelock:{NODE}"), "the lock to expire")
            stage.come(3, node=NODE)
            wait(lambda: len(_with_node(stage)) >= 1, "others to be bound to the node")
            stage.come(2, node=NODE)
        continued_s = time.monotonic()
        error = answer.result(timeout=PATIENCE_S)
        stage.settle(replacing=True)
    stage.check()
    ended = f"{stage.replaced} pods ended and made again"
    stage.report(since(continued_s), more=f"the late binding: {error or 'bound'}; {ended}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        pytest.param("refused", marks=pytest.mark.row(kind="error")),
        pytest.param("silent", marks=pytest.mark.row(kind="delay")),
    ],
)
@pytest.mark.row(
    point="FAULT-42",
    fault="the trace collector is unavailable (refused, or silent)",
    answer="spans are dropped; no decision waits",
    promise="LIVE-4",
)
def test_f42_collector_away(system: System, stage: Stage, tmp_path: Path, how: str) -> None:
    stage.come(1)
    stage.settle()
    pod = {**stage.mine()[0], "metadata": {**stage.mine()[0]["metadata"], "uid": "too-large"}}
    pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = str(10**6)
    with _silent_port(listens=how == "silent") as port:
        endpoint = {"HAMI_TELEMETRY_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
        with replica(system, tmp_path, **endpoint) as (url, _):
            with_s = _slowest(url, pod)
    without_s = _slowest(system.scheduler_url, pod)

    assert with_s < max(2 * without_s, 0.25), f"{with_s:.3f} s, normally {without_s:.3f} s"
    stage.check()
    stage.report(
        0.0,
        more=f"slowest of 15 decisions {with_s * 1000:.0f} ms, else {without_s * 1000:.0f} ms",
    )


class Answer:
    """One answer of /filter."""

    def __init__(self, body: Json) -> None:
        self.nodes: list[str] = body["NodeNames"] or []
        self.error: str = body["Error"]


def _ask(url: str, pod: Json, *nodes: str) -> Answer:
    names = list(nodes) or ["node-0", "node-1"]
    answer = httpx.post(f"{url}/filter", json={"pod": pod, "nodenames": names}, timeout=PATIENCE_S)
    return Answer(answer.json())


def _filter(url: str, pod: Json, *nodes: str) -> str:
    """The node that was chosen; a lost race is asked again, as kube-scheduler does."""
    for _ in range(5):
        found = _ask(url, pod, *nodes)
        if found.nodes:
            return found.nodes[0]
    raise AssertionError(found.error)


def _bind(url: str, pod: Json, node: str) -> str:
    metadata = pod["metadata"]
    body = {
        "podName": metadata["name"],
        "podNamespace": metadata["namespace"],
        "podUID": metadata["uid"],
        "node": node,
    }
    return str(httpx.post(f"{url}/bind", json=body, timeout=PATIENCE_S).json()["Error"])


def _slowest(url: str, pod: Json) -> float:
    """Seconds (of a quiet machine) of the slowest of fifteen refusals."""
    found = []
    for _ in range(15):
        asking = Unhurried()
        assert not _ask(url, pod).nodes
        found.append(asking.seconds)
    return max(found)


def _with_node(stage: Stage) -> list[Json]:
    return [pod for pod in stage.mine() if pod["spec"].get("nodeName")]


@contextmanager
def _silent_port(*, listens: bool) -> Iterator[int]:
    """A port that accepts connections and never answers, or one without a listener."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:
            server.listen(64)
        yield server.getsockname()[1]
