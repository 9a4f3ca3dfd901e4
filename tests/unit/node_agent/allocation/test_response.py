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


def preloads(**env: str) -> bool:
    record = a_record(a_grant(), ids={"x"})
    spec = container_response(record, limits_dir="/limits", container_env=env, policy=POLICY)
    return any(mount.container_path == "/etc/ld.so.preload" for mount in spec.mounts)


@pytest.mark.parametrize("value", ["1", "t", "T", "true", "TRUE", "True"])
def test_a_container_may_switch_control_off(value: str) -> None:
    assert not preloads(CUDA_DISABLE_CONTROL=value)


@pytest.mark.parametrize("value", ["", "0", "false", "yes", "tRUE"])
def test_anything_but_gos_true_leaves_control_on(value: str) -> None:
    assert preloads(CUDA_DISABLE_CONTROL=value)


@pytest.mark.parametrize(
    ("env", "disabled", "policy"),
    [
        ({}, False, "default"),
        ({"GPU_CORE_UTILIZATION_POLICY": "FORCE"}, False, "force"),
        ({"GPU_CORE_UTILIZATION_POLICY": "nonsense"}, False, "default"),
        ({"GPU_CORE_UTILIZATION_POLICY": "force"}, True, "disable"),
    ],
)
def test_the_nodes_switch_wins_over_the_containers_wish(
    env: dict[str, str], disabled: bool, policy: str
) -> None:
    assert core_policy(env, disable_core_limit=disabled) == policy


def test_oversubscription_and_no_core_limit_are_passed_in_the_env() -> None:
    policy = replace(POLICY, oversubscribe=True, disable_core_limit=True, log_level="")
    record = a_record(a_grant(), ids={"x"})

    envs = container_response(record, limits_dir="/limits", container_env={}, policy=policy).envs

    assert envs["CUDA_OVERSUBSCRIBE"] == "true"
    assert envs["GPU_CORE_UTILIZATION_POLICY"] == "disable"
    assert "LIBCUDA_LOG_LEVEL" not in envs
