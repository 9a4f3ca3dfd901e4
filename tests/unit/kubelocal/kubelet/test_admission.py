"""Whether a bound pod fits the node."""

from kubelocal.kubelet.admission import Rejection, check_predicates
from kubelocal.pod_resources import amounts, pod_requests

from tests.unit.kubelocal.kubelet.pod_builders import container, pod

ALLOCATABLE = amounts({"cpu": "4", "memory": "8Gi", "pods": "2", "nvidia.com/gpu": "10"})


def check(wanted: dict, *others: dict, **labels: str) -> Rejection | None:
    used = [pod_requests(other["spec"]) for other in others]
    return check_predicates(wanted, used, allocatable=ALLOCATABLE, labels=labels)


def test_a_pod_that_fits_is_admitted() -> None:
    assert check(pod(container(limits={"cpu": "4", "memory": "8Gi"}, gpus=10))) is None


def test_too_much_cpu_is_reported_in_thousandths() -> None:
    rejection = check(pod(container(limits={"cpu": "3"})), pod(container(limits={"cpu": "1500m"})))

    assert rejection == Rejection(
        reason="OutOfcpu",
        message="Node didn't have enough resource: cpu, requested: 3000, used: 1500, "
        "capacity: 4000",
    )


def test_one_pod_too_many_is_refused() -> None:
    rejection = check(pod(container()), pod(container()), pod(container()))

    assert rejection is not None
    assert rejection.reason == "OutOfpods"


def test_a_device_beyond_allocatable_is_refused_with_the_resources_name() -> None:
    rejection = check(pod(container(gpus=11)))

    assert rejection is not None
    assert rejection.reason == "OutOfnvidia.com/gpu"


def test_a_resource_that_the_node_does_not_list_may_be_the_clusters() -> None:
    assert check(pod(container(limits={"example.com/thing": "5"}))) is None


def test_a_node_selector_that_does_not_match_is_refused() -> None:
    wanted = pod(container(), nodeSelector={"zone": "a"})

    assert check(wanted, zone="a") is None
    rejection = check(wanted, zone="b")
    assert rejection == Rejection(reason="NodeAffinity", message="Predicate NodeAffinity failed")
