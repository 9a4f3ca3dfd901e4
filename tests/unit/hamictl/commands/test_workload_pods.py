"""`explain deploy/NAME`: the pods of a workload, of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from hamicommon.errors import NotFound
from hamictl.commands.answers import KINDS, label_selector, owner_of, pods_of_owner
from hamictl.scheduler_client import SchedulerAddress, metrics_address
from hamictl.target import Installation

from tests.contract.kubernetes.servers import emulated

CONTAINER = {"name": "c", "image": "x"}


@pytest.mark.parametrize(
    ("given", "owner"),
    [
        ("deploy/train", ("deploy", "train")),
        ("Deployment/train", ("Deployment", "train")),
        ("cj/nightly", ("cj", "nightly")),
        ("train", None),
        ("pod/train", None),
        ("team-a/train", None),
        ("deploy/", None),
    ],
)
def test_a_workload_is_named_by_its_kind_as_kubectl_has_it(
    given: str, owner: tuple[str, str] | None
) -> None:
    assert owner_of(given) == owner


def test_a_replication_controllers_selector_is_its_labels() -> None:
    assert label_selector({"spec": {"selector": {"app": "a", "tier": "b"}}}) == "app=a,tier=b"


def installation(kubeconfig: Path) -> Installation:
    address = "http://127.0.0.1:1"
    return Installation(
        kubeconfig=kubeconfig,
        scheduler=SchedulerAddress(url=address),
        postgres_dsn="",
        local=True,
        metrics=metrics_address(address),
    )


@pytest.mark.integration
async def test_the_pods_that_its_selector_takes_are_listed(tmp_path: Path) -> None:
    with emulated(tmp_path) as cluster:
        labels = {"app": "train"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [CONTAINER]}}
        spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
        cluster.ok(
            cluster.client.post(
                "/apis/apps/v1/namespaces/default/deployments",
                json={"metadata": {"name": "train"}, "spec": spec},
            )
        )
        target = installation(cluster.kubeconfig)
        with pytest.raises(NotFound, match="Deployment default/train has no pod"):
            await pods_of_owner(target, "deploy", "train", "default")
        for name, own in (("train-1", labels), ("other", {"app": "other"})):
            pod = {"metadata": {"name": name, "labels": own}, "spec": {"containers": [CONTAINER]}}
            cluster.ok(cluster.client.post(cluster.path("pods"), json=pod))

        found = await pods_of_owner(target, "deploy", "train", "default")
        with pytest.raises(NotFound, match="there is no Deployment default/nobody"):
            await pods_of_owner(target, "deploy", "nobody", "default")

    assert [row["pod_name"] for row in found.rows] == ["train-1"]


def test_every_kind_with_pods_is_known() -> None:
    kinds = {title for title, _, _ in KINDS.values()}

    assert kinds == {
        *("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "CronJob"),
        "ReplicationController",
    }
