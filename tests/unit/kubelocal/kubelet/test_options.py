"""Which pods a kubelet takes for its own."""

from kubelocal.kubelet.options import parse

COMMAND = ["--node", "gpu-0", "--kubeconfig", "k", "--root", "/srv/node"]


def test_a_kubelet_runs_what_is_bound_to_its_node() -> None:
    assert parse(COMMAND).pods_selector == "spec.nodeName=gpu-0"


def test_the_pods_of_a_namespace_can_be_left_to_somebody_else() -> None:
    options = parse([*COMMAND, "--skip-namespace", "hami-system"])
    assert options.pods_selector == "spec.nodeName=gpu-0,metadata.namespace!=hami-system"
