"""Whole answers are in `test_answer_vectors.py`; here is what a container may set itself."""

from dataclasses import replace

import pytest
from hami_node_agent.allocation.response import (
    AnswerPolicy,
    container_response,
    core_policy,
)

from tests.unit.node_agent.builders import ANSWERS, a_grant, a_record

AS_HAMI = replace(ANSWERS, allow_disable_control=True)


def preloads(policy: AnswerPolicy, **env: str) -> bool:
    record = a_record(a_grant(), ids={"x"})
    spec = container_response(record, limits_dir="/limits", container_env=env, policy=policy)
    return any(mount.container_path == "/etc/ld.so.preload" for mount in spec.mounts)


@pytest.mark.parametrize("value", ["1", "t", "T", "true", "TRUE", "True"])
def test_a_container_switches_control_off_only_where_the_node_allows_it(value: str) -> None:
    assert preloads(ANSWERS, CUDA_DISABLE_CONTROL=value)
    assert not preloads(AS_HAMI, CUDA_DISABLE_CONTROL=value)


@pytest.mark.parametrize("value", ["", "0", "false", "yes", "tRUE"])
def test_anything_but_gos_true_leaves_control_on(value: str) -> None:
    assert preloads(AS_HAMI, CUDA_DISABLE_CONTROL=value)


@pytest.mark.parametrize(
    ("asked", "node", "policy"),
    [
        ("", ANSWERS, "default"),
        ("FORCE", ANSWERS, "force"),
        ("default", ANSWERS, "default"),
        (" force\n", ANSWERS, "force"),
        (" Disable ", AS_HAMI, "disable"),
        ("nonsense", ANSWERS, "force"),
        ("disabled", AS_HAMI, "force"),
        ("froce", replace(ANSWERS, disable_core_limit=True), "disable"),
        ("disable", ANSWERS, "default"),
        ("DISABLE", AS_HAMI, "disable"),
        ("force", replace(ANSWERS, disable_core_limit=True), "disable"),
    ],
)
def test_a_container_may_make_its_core_limit_stricter_and_lift_it_where_the_node_allows_it(
    asked: str, node: AnswerPolicy, policy: str
) -> None:
    assert core_policy({"GPU_CORE_UTILIZATION_POLICY": asked}, node) == policy


def test_oversubscription_and_no_core_limit_are_passed_in_the_env() -> None:
    policy = replace(ANSWERS, oversubscribe=True, disable_core_limit=True, log_level="")
    record = a_record(a_grant(), ids={"x"})

    envs = container_response(record, limits_dir="/limits", container_env={}, policy=policy).envs

    assert envs["CUDA_OVERSUBSCRIBE"] == "true"
    assert envs["GPU_CORE_UTILIZATION_POLICY"] == "disable"
    assert "LIBCUDA_LOG_LEVEL" not in envs
