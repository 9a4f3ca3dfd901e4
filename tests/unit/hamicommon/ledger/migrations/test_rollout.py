"""The end of a roll-out, from the objects of the API server."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest
from hamicommon.errors import Forbidden, Unavailable
from hamicommon.ledger.migrations import rollout
from hamicommon.ledger.migrations.rollout import until_over, why_unfinished

NEW, OLD = "registry/hami-scheduler:0.2.0", "registry/hami-scheduler:0.1.0"


def containers(image: str) -> list[dict[str, Any]]:
    """Return the containers of k8s/base, with one that a mesh adds."""
    return [
        {"name": "kube-scheduler", "image": "registry/kube-scheduler:v1.36.2"},
        {"name": "scheduler", "image": image},
        {"name": "istio-proxy", "image": "registry/proxyv2:1.27.0"},
    ]


def a_deployment(image: str = NEW, **status: int) -> dict[str, Any]:
    whole = {"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}
    return {
        "metadata": {"name": "hami-scheduler", "generation": 2},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "s"}},
            "template": {"spec": {"containers": containers(image)}},
        },
        "status": whole | status,
    }


def a_pod(image: str, *, app: str = "s", phase: str = "Running") -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "labels": {"app": app}},
        "spec": {"containers": containers(image)},
        "status": {"phase": phase},
    }


def test_all_replicas_of_this_version_and_no_other_pod_is_the_end() -> None:
    pods = [a_pod(NEW), a_pod(OLD, app="another"), a_pod(OLD, phase="Failed")]

    assert why_unfinished(a_deployment(), pods, NEW) is None


@pytest.mark.parametrize(
    ("deployment", "sentence"),
    [
        (a_deployment(image=OLD), "and this migration has"),
        (a_deployment(observedGeneration=1), "has not picked up its last change yet"),
        (a_deployment(updatedReplicas=1), "has 1 of 2"),
        (a_deployment(availableReplicas=1), "has 1 of 2"),
        (a_deployment(replicas=3), "has 2 of 2"),
    ],
    ids=["not applied", "not seen", "not updated", "not ready", "one too many"],
)
def test_a_roll_out_that_goes_on_is_waited_for(deployment: dict[str, Any], sentence: str) -> None:
    why = why_unfinished(deployment, [a_pod(NEW)], NEW)

    assert why is not None
    assert sentence in why


def test_a_replica_that_is_still_ending_is_waited_for() -> None:
    why = why_unfinished(a_deployment(), [a_pod(NEW), a_pod(OLD)], NEW)

    assert why == "p of an older version is still ending"
    assert why_unfinished(a_deployment(), [a_pod(f"{OLD}@sha256:1")], f"{NEW}@sha256:2") == why


def test_a_deployment_without_our_container_is_named() -> None:
    deployment = a_deployment()
    deployment["spec"]["template"]["spec"]["containers"] = containers(NEW)[:1]

    assert why_unfinished(deployment, [], NEW) == "hami-scheduler has no container scheduler"


def test_another_service_of_the_same_version_and_a_digest_are_no_older_version() -> None:
    for image in ("hami-metrics:0.2.0", "elsewhere:5000/hami-metrics:0.2.0", "x@sha256:0"):
        assert why_unfinished(a_deployment(image=image), [a_pod(image)], NEW) is None
    assert why_unfinished(a_deployment(image="elsewhere:5000/hami-metrics:0.1.0"), [], NEW)


class ApiServer:
    """Gives the answers in order, one a call, and repeats the last one."""

    def __init__(self, *answers: Exception | dict[str, Any]) -> None:
        self._answers = list(answers)

    async def get(self, _path: str) -> dict[str, Any]:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_an_api_server_that_is_away_in_between_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rollout, "POLL_S", 0.0)
    job = {"metadata": {"name": "p"}, "spec": {"containers": [{"image": NEW}]}}
    pods = {"items": [job, a_pod(NEW)]}
    api = ApiServer(
        Unavailable("no answer in 10 s"), pods, Forbidden("roles are not read yet"), pods,
        a_deployment(),
    )  # fmt: skip

    with caplog.at_level(logging.INFO):
        await until_over(cast(Any, api), "hami-system", ["hami-scheduler"], "p")

    assert [record.getMessage() for record in caplog.records] == [
        "Waiting for the rollout: the API server can't be asked: no answer in 10 s",
        "Waiting for the rollout: the API server can't be asked: roles are not read yet",
    ]
