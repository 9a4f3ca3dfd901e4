"""Pods that no user would write, by the hundred: each runs, waits with one sentence, or is refused.

They end no process, and neither the ledger nor the logs grow with their contents.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from hami_scheduler.adapters.postgres.decisions import MAX_ROWS
from hamicommon.k8s.types import Json

from tests import measured
from tests.e2e.conftest import running_system
from tests.e2e.system import System, a_pod

pytestmark = pytest.mark.slow

TIME_S = 120.0
MAX_PENDING = 25
BATCH = 5
"""Pods that come one after another before the waiting ones are changed."""
MIB = 1024 * 1024
MERGE = {"Content-Type": "application/merge-patch+json"}
AMOUNTS: list[object] = [
    *("0", "1", "2", "3", "10", "100", "0.0", "0k", "1k", "1e3", "1E400", "100m", "-1", "-0"),
    *(
        "16Gi",
        "4096",
        "80000",
        "99999999999",
        "9223372036854775808",
        "",
        "x",
        "\N{ARABIC-INDIC DIGIT ONE}",
        "1 ",
        "+1",
    ),
]
RESOURCES = [
    *(f"nvidia.com/{name}" for name in ("gpu", "gpumem", "gpucores", "gpumem-percentage")),
    *("nvidia.com/priority", "nvidia.com/gpumemory", "hygon.com/dcunum", "metax-tech.com/sgpu"),
    *("cambricon.com/vmlu", "kunlunxin.com/vxpu", "enflame.com/drs-gcu", "aws.amazon.com/neuron"),
]
KEYS = [
    *(f"nvidia.com/{name}" for name in ("use-gputype", "nouse-gputype", "use-gpuuuid")),
    *("nvidia.com/nouse-gpuuuid", "nvidia.com/vgpu-mode", "nvidia.com/numa-bind"),
    *("hami.io/node-scheduler-policy", "hami.io/gpu-scheduler-policy"),
    *("hami.io/device-scoring-weights", "hami.io/traceparent", "hami.io/grant"),
    *("hami.io/vgpu-devices-allocated", "hami.io/retry-at", "hami.io/vgpu-node"),
    *("metax-tech.com/sgpu-qos-policy", "metax-tech.com/sgpu-app-class", "huawei.com/vnpu-mode"),
]
VALUES = [
    *("", " ", ",", ",,,", "slot=1,core=1,memory=1", "slot=1", "binpack", "spread", "true", "yes"),
    *("A100", "GPU-x", "\0", "a\nb\r\x1b[31m", "\u202e\N{GRINNING FACE}", "'\"\\;DROP TABLE x;--"),
    *("x" * 15_000, "x" * 17_000, "\N{GRINNING FACE}" * 40_000, "x," * 100_000, "%s{}$(id)"),
]
REFUSALS = (400, 403, 413, 422)
LONGEST = 1100
"""Characters of any sentence."""


@pytest.fixture
def system(cluster_kind: str) -> Iterator[System]:
    """A system of this module, with no other test's lines in its logs."""
    with running_system(cluster_kind) as fresh:
        yield fresh


def some_pod(chance: random.Random, number: int) -> Json:
    def limits() -> Json:
        names = chance.sample(RESOURCES, chance.choice([1, 1, 2, 3]))
        if chance.random() < 0.6:
            names = ["nvidia.com/gpu", *names]
        return {name: chance.choice(AMOUNTS) for name in names}

    sane = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 100}
    parts = {
        f"c{index}": sane if chance.random() < 0.4 else limits()
        for index in range(chance.choice([1, 1, 2, 5]))
    }
    keys = chance.sample(KEYS, chance.choice([0, 1, 1, 2, 4]))
    pod = a_pod(
        f"odd-{number}",
        containers=parts,
        command=("sleep", "600"),
        annotations={key: chance.choice(VALUES) for key in keys},
    )
    pod["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    return pod


def size_of(system: System) -> tuple[float, float]:
    """MiB of the database and of all logs and traces."""
    database = int(system.sql("SELECT pg_database_size(current_database())")) / MIB
    logs = sum(path.stat().st_size for path in Path(system.folder).rglob("*.log")) / MIB
    return database, logs


def sentence_about(pod: Json) -> str:
    """Reason why it does not run; empty if it is on a node."""
    if pod["spec"].get("nodeName"):
        return ""
    conditions = pod.get("status", {}).get("conditions") or ()
    return next((c.get("message", "") for c in conditions if c["type"] == "PodScheduled"), "")


def test_whatever_a_pod_contains_it_runs_or_waits_with_one_sentence(
    system: System, pytestconfig: pytest.Config
) -> None:
    seed = str(pytestconfig.getoption("--seed", default="") or "1")
    chance, answers, number = random.Random(seed), Counter[int](), 0
    database, logs = size_of(system)
    deadline = time.monotonic() + TIME_S
    while time.monotonic() < deadline:
        # Some come to /filter as their authors wrote them: admission was away.
        unseen = chance.random() < 0.4
        with system.past_admission() if unseen else nullcontext():
            for _ in range(BATCH):
                number += 1
                pod = some_pod(chance, number)
                if unseen:
                    pod["spec"]["schedulerName"] = "hami-scheduler"
                answer = system.create(pod)
                answers[answer.status_code] += 1
                if answer.status_code != 201:
                    message = str(answer.json()["message"])
                    assert answer.status_code in REFUSALS, answer.text[:3000]
                    assert len(message) <= 2 * LONGEST, message[:3000]
        waiting = [pod for pod in system.pods() if not pod["spec"].get("nodeName")]
        for _ in range(BATCH if waiting else 0):
            change(system, chance.choice(waiting), chance)
        for pod in waiting[:-MAX_PENDING]:
            system.force_delete(pod["metadata"]["name"])
        placed = [pod for pod in system.pods() if pod["spec"].get("nodeName")]
        for pod in placed[:-MAX_PENDING]:
            system.force_delete(pod["metadata"]["name"])

    now = size_of(system)
    grown = (now[0] - database, now[1] - logs)
    measured.note(
        f"{number} odd pods in {TIME_S:g} s: answers {dict(answers)}; the database grew "
        f"{grown[0]:.1f} MiB, logs {grown[1]:.1f} MiB"
    )
    assert max(grown) < 60
    most = "SELECT max(n) FROM (SELECT count(*) AS n FROM decisions GROUP BY pod_uid) AS x"
    assert int(system.sql(most) or 0) <= 2 * MAX_ROWS
    longest = "SELECT max(greatest(length(message), length(summary))) FROM decisions"
    assert int(system.sql(longest) or 0) <= LONGEST
    for pod in system.pods():
        assert len(sentence_about(pod)) <= 2 * LONGEST
    died = [
        f"{path.name}: {line[:500]}"
        for path in Path(system.folder).rglob("*.log")
        if "kubelet/pods" not in str(path)
        for line in path.read_text(errors="replace").splitlines()
        if "Traceback" in line
        or "Restarting a background loop that failed" in line
        or "Failed to judge" in line
    ]
    assert died == []
    system.check_invariants()
    # It still works.
    for pod in system.pods():
        system.force_delete(pod["metadata"]["name"])
    system.run(a_pod("sane", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 100}))


def change(system: System, pod: Json, chance: random.Random) -> None:
    """Change the annotations of a waiting pod as its author."""
    annotations = {chance.choice(KEYS): f"{chance.random()}" + chance.choice(VALUES)}
    name = pod["metadata"]["name"]
    system.api.patch(
        f"/api/v1/namespaces/default/pods/{name}",
        json={"metadata": {"annotations": annotations}},
        headers=MERGE,
    )
