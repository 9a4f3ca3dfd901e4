"""Whole answers are in `test_answer_vectors.py`; here is what a container may set itself."""

from dataclasses import replace
from pathlib import PurePosixPath

import pytest
from hami_node_agent.allocation.response import (
    AnswerPolicy,
    container_response,
    core_policy,
)

from tests.unit.node_agent.builders import a_grant, a_record

POLICY = AnswerPolicy(
    container_base=PurePosixPath("/usr/local/vgpu"),
    host_base=PurePosixPath("/usr/local/vgpu"),
    library=PurePosixPath("/usr/local/vgpu/libvgpu.so.0.1.0"),
)


AS_HAMI = replace(POLICY, allow_disable_control=True)


def preloads(policy: AnswerPolicy, **env: str) -> bool:
    record = a_record(a_grant(), ids={"x"})
    spec = container_response(record, limits_dir="/limits", container_env=env, policy=policy)
    return any(mount.container_path == "/etc/ld.so.preload" for mount in spec.mounts)


@pytest.mark.parametrize("value", ["1", "t", "T", "true", "TRUE", "True"])
def test_a_container_switches_control_off_only_where_the_node_allows_it(value: str) -> None:
    assert preloads(POLICY, CUDA_DISABLE_CONTROL=value)
    assert not preloads(AS_HAMI, CUDA_DISABLE_CONTROL=value)


@pytest.mark.parametrize("value", ["", "0", "false", "yes", "tRUE"])
def test_anything_but_gos_true_leaves_control_on(value: str) -> None:
    assert preloads(AS_HAMI, CUDA_DISABLE_CONTROL=value)


@pytest.mark.parametrize(
    ("asked", "node", "policy"),
    [
        ("", POLICY, "default"),
        ("FORCE", POLICY, "force"),
        ("default", POLICY, "default"),
        (" force\n", POLICY, "force"),
        (" Disable ", AS_HAMI, "disable"),
        ("nonsense", POLICY, "force"),
        ("disabled", AS_HAMI, "force"),
        ("froce", replace(POLICY, disable_core_limit=True), "disable"),
        ("disable", POLICY, "default"),
        ("DISABLE", AS_HAMI, "disable"),
        ("force", replace(POLICY, disable_core_limit=True), "disable"),
    ],
)
def test_a_container_may_make_its_core_limit_stricter_and_lift_it_where_the_node_allows_it(
    asked: str, node: AnswerPolicy, policy: str
) -> None:
    assert core_policy({"GPU_CORE_UTILIZATION_POLICY": asked}, node) == policy


def test_oversubscription_and_no_core_limit_are_passed_in_the_env() -> None:
    policy = replace(POLICY, oversubscribe=True, disable_core_limit=True, log_level="")
    record = a_record(a_grant(), ids={"x"})

    envs = container_response(record, limits_dir="/limits", container_env={}, policy=policy).envs

    assert envs["CUDA_OVERSUBSCRIBE"] == "true"
    assert envs["GPU_CORE_UTILIZATION_POLICY"] == "disable"
    assert "LIBCUDA_LOG_LEVEL" not in envs
