"""Usage follows what a program really does: in Prometheus, and in Postgres."""

from __future__ import annotations

import re
import time

import httpx
import pytest

from tests import measured
from tests.e2e.system import MIB, System, a_pod, slice_of, wait

pytestmark = pytest.mark.e2e


def test_usage_follows_a_program_that_allocates_computes_and_ends(system: System) -> None:
    """How late it is is printed; on a quiet machine less than two seconds."""
    assert system.create(a_pod("follow", slice_of(4096, 30))).status_code == 201

    def printed() -> bool:
        found = system.pod("follow")
        return found is not None and any(
            line["event"] == "allocated" for line in system.log(found, "cuda")
        )

    def stored(condition: str) -> bool:
        count = system.sql(
            "SELECT count(*) FROM usage_samples WHERE pod_name = 'follow' AND sampled_at > now()"
            f" - interval '1 minute' AND memory_limit_bytes = {4096 * MIB} AND {condition}"
        )
        return count != "0"

    wait(printed, "the program to allocate")
    began_s = time.monotonic()
    wait(lambda: used_bytes(system) == [4096.0 * MIB], "Prometheus to show what it holds")
    shown_s = time.monotonic() - began_s
    wait(lambda: stored(f"memory_used_bytes = {4096 * MIB}"), "Postgres to have it")
    stored_s = time.monotonic() - began_s
    wait(lambda: stored("core_percent >= 0 AND core_limit_percent = 30"), "its cores to be known")

    system.delete("follow")
    began_s = time.monotonic()
    wait(lambda: used_bytes(system) in ([], [0.0]), "Prometheus to show that it holds nothing")
    freed_s = time.monotonic() - began_s
    measured.note(
        f"usage after the event: {shown_s:.1f} s in Prometheus, {stored_s:.1f} s in Postgres,"
        f" {freed_s:.1f} s after the end"
    )


def used_bytes(system: System) -> list[float]:
    """`hami_vgpu_memory_used_bytes` of the pod, over all nodes."""
    found: list[float] = []
    for node in system.described["node_agents"]:
        text = httpx.get(str(node["metrics_url"])).text
        lines = re.findall(r"^hami_vgpu_memory_used_bytes\{(.*)\} (\S+)$", text, re.MULTILINE)
        found += [float(value) for labels, value in lines if 'pod="follow"' in labels]
    return found
