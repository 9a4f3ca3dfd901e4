"""A pod that takes more than its slice is seen from outside, and ended if the operator wants it.

The pod undoes the preload inside its container, as any image with `unshare` can. Another pod never
asked for a card and has all of them from its container runtime.
"""

import re
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from hamicommon.k8s.types import Json

from tests import measured
from tests.e2e.conftest import running_system
from tests.e2e.system import System, a_pod, hamictl, slice_of, wait

SEEN_WITHIN_S = 30.0
TAKEN = str(20 * 1024**3)
PAST = f"mount --bind /dev/null /etc/ld.so.preload && exec vgpu-probe --bytes {TAKEN}"
"""In a separate mount namespace, where the library's mounts do not hold."""


def past_the_library(name: str) -> Json:
    return a_pod(name, slice_of(4096, 10), command=("unshare", "-m", "sh", "-c", PAST))


def all_cards(name: str) -> Json:
    """Admission refuses the variable that asks a runtime for this; images can have it as well."""
    argv = f"FAKEGPU_VISIBLE_DEVICES=all exec vgpu-probe --bytes {1024**3}"
    return a_pod(name, command=("sh", "-c", argv))


def read_states(system: System, name: str) -> set[str]:
    """States of a pod in Prometheus' text, over all nodes."""
    found: set[str] = set()
    for node in system.described["node_agents"]:
        text = httpx.get(str(node["metrics_url"])).text
        lines = re.findall(r"^hami_vgpu_limit_state\{(.*)\} 1", text, re.MULTILINE)
        found |= {
            state
            for labels in lines
            if f'pod="{name}"' in labels
            for state in re.findall(r'state="(\w+)"', labels)
        }
    return found


def periods(system: System, name: str, columns: str = "state") -> list[str]:
    query = f"SELECT DISTINCT {columns} FROM limit_periods WHERE pod_name = '{name}'"
    return system.sql(query).splitlines()


def seconds(began_s: float, check: Callable[[], object], what: str) -> float:
    wait(check, what)
    return time.monotonic() - began_s


def found_out(system: System, name: str, state: str) -> str:
    """Wait until every reporter reports it; return the seconds that each took."""
    began_s = time.monotonic()
    reason = f"Limit{state.capitalize()}"
    took = {
        "metric": seconds(began_s, lambda: state in read_states(system, name), "the metric"),
        "row": seconds(began_s, lambda: state in periods(system, name), "the period"),
        "event": seconds(
            began_s,
            lambda: any(why == reason for why, _ in system.events(name)),
            "the pod's event",
        ),
        "drift": seconds(
            began_s,
            lambda: (
                f"default/{name} " in hamictl(system.folder, "drift", "--class", f"limit-{state}")
            ),
            "hamictl drift",
        ),
    }
    text = ", ".join(f"{what} {took_s:.1f} s" for what, took_s in took.items())
    measured.note(f"{name} is {state}: {text}")
    assert took["event"] < SEEN_WITHIN_S
    return text


def wait_until_allocated(system: System, name: str) -> None:
    pod = system.wait_for_phase(name, "Running")
    system.wait_for_log(pod, "cuda", "allocated")


def test_pods_beyond_their_grants_are_in_metrics_history_drift_events_and_explain(
    system: System,
) -> None:
    system.run(a_pod("honest", slice_of(4096, 10)))
    wait_until_allocated(system, "honest")
    assert system.create(past_the_library("past")).status_code == 201
    wait_until_allocated(system, "past")
    found_out(system, "past", "exceeded")
    assert system.create(all_cards("greedy")).status_code == 201
    wait_until_allocated(system, "greedy")
    found_out(system, "greedy", "bypassed")

    [held] = periods(system, "past", "peak_mib > 8192 AND granted_mib = 4096")
    assert held == "t"
    assert set(periods(system, "greedy", "granted_mib")) == {"0"}
    explained = hamictl(system.folder, "explain", "past")
    assert re.search(r"Note: limits exceeded of container cuda since", explained)
    assert "limits exceeded" in explained.splitlines()[2] or "limits exceeded" in explained
    assert "exceeded" in hamictl(system.folder, "get", "allocations")
    assert read_states(system, "honest") == {"enforced"}
    assert periods(system, "honest") == []

    system.delete("past", "greedy")
    wait(
        lambda: system.sql("SELECT count(*) FROM limit_periods WHERE ended_at IS NULL") == "0",
        "the periods to end with their pods",
    )


@pytest.fixture(scope="module")
def evicting(cluster_kind: str) -> Iterator[System]:
    environment = {"HAMI_SCHEDULER_ENFORCEMENT": "evict", "HAMI_SCHEDULER_EVICT_AFTER_S": "10"}
    with running_system(cluster_kind, environment=environment) as system:
        yield system


@pytest.mark.slow
def test_a_pod_beyond_its_grant_is_ended_and_the_others_stay(evicting: System) -> None:
    system = evicting
    system.run(a_pod("stays", slice_of(4096, 10)))
    assert system.create(past_the_library("thief")).status_code == 201
    wait_until_allocated(system, "thief")
    uid = system.pod("thief")["metadata"]["uid"]  # type: ignore[index]
    began_s = time.monotonic()
    wait(lambda: system.pod("thief") is None, "the thief to be ended")
    measured.note(f"ended after {time.monotonic() - began_s:.1f} s")

    assert any(reason == "LimitEviction" for reason, _ in system.events("thief"))
    row = f"SELECT evicted_at IS NOT NULL FROM limit_periods WHERE pod_uid = '{uid}'"
    assert "t" in system.sql(row).splitlines()
    assert system.wait_for_phase("stays", "Running")
    assert read_states(system, "stays") == {"enforced"}
    wait(
        lambda: system.sql(f"SELECT state FROM allocations WHERE pod_uid = '{uid}'") == "released",
        "its slice to be free",
    )
