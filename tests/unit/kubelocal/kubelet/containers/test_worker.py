"""Restart policy and crash-loop back-off."""

import pytest
from kubelocal.kubelet.containers.worker import BackoffRule, RestartBackoff, restarts


def test_the_first_restart_is_at_once_and_the_waits_double_up_to_the_longest() -> None:
    rule, backoff, waits = BackoffRule(), RestartBackoff(), []

    for end in range(8):
        backoff = backoff.after_end(rule, ran_s=1.0, ended_at_s=1000.0 * end)
        waits.append(backoff.restart_at_s() - 1000.0 * end)

    assert waits == [0, 10, 20, 40, 80, 160, 300, 300]


def test_a_container_that_ran_long_starts_again_at_once() -> None:
    rule = BackoffRule()
    backoff = RestartBackoff(wait_s=160.0, ended_at_s=5.0)

    backoff = backoff.after_end(rule, ran_s=601.0, ended_at_s=700.0)

    assert backoff.restart_at_s() == 700.0


@pytest.mark.parametrize(
    ("policy", "exit_code", "init", "sidecar", "again"),
    [
        ("Always", 0, False, False, True),
        ("Always", 0, True, False, False),
        ("Always", 1, True, False, True),
        ("OnFailure", 0, False, False, False),
        ("OnFailure", 1, False, False, True),
        ("Never", 1, False, False, False),
        ("Never", 1, True, False, False),
        ("Never", 1, False, True, True),
    ],
)
def test_the_restart_policy_decides(
    policy: str, exit_code: int, init: bool, sidecar: bool, again: bool
) -> None:
    assert restarts(policy, exit_code=exit_code, sidecar=sidecar, init=init) is again
