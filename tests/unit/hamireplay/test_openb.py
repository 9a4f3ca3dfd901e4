"""Alibaba's openb form, and the mistakes people make in it."""

import pytest
from hamicommon.errors import InvalidRequest
from hamireplay import openb
from hamireplay.openb import read_trace
from hamireplay.trace import Trace, without_a_card

NODES = "sn,cpu_milli,memory_mib,gpu,model\na,64000,1000,2,P100\nb,32000,1000,0,\n"
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time\n"
    "p,4000,100,1,470,P100|T4,5,60\nq,1000,100,0,0,,7,\n"
)


def read(nodes: str = NODES, pods: str = PODS) -> Trace:
    return read_trace(nodes, pods, nodes_file="nodes.csv", pods_file="pods.csv")


def test_nodes_without_a_card_are_left_out() -> None:
    assert [(node.name, node.cards) for node in read().nodes] == [("a", 2)]


def test_a_pod_has_its_share_its_models_and_its_times() -> None:
    [share, other] = read().pods

    assert (share.card_milli, share.models, share.kind) == (470, ("P100", "T4"), "share")
    assert (share.arrives_s, share.ends_s) == (5, 60)
    assert (other.cards, other.kind, other.ends_s) == (0, "no card", None)


@pytest.mark.parametrize(
    ("nodes", "pods", "sentence"),
    [
        ("x,y\n1,2\n", PODS, "nodes.csv: the first line lacks sn, cpu_milli"),
        (NODES.replace("64000", "-1"), PODS, "nodes.csv line 2: cpu_milli is '-1'"),
        (
            NODES.replace("\nb,", "\na,"),
            PODS,
            "nodes.csv line 3: sn is 'a': expected a unique name",
        ),
        (NODES.replace("2,P100", "0,"), PODS, "nodes.csv has no node with a card"),
        (
            NODES,
            PODS.replace("470", "475"),
            "pods.csv line 2: gpu_milli is 475: expected 10 to 1000 in",
        ),
        (NODES, PODS.replace("470", "2000"), "pods.csv line 2: gpu_milli is '2000'"),
        (NODES, PODS.replace("1,470", "9999,470"), "pods.csv line 2: num_gpu is '9999'"),
        (NODES, PODS.replace("5,60", "nan,60"), "creation_time is 'nan': expected seconds"),
        (NODES, PODS.replace("5,60", "70,60"), "deletion_time 60 is before creation_time"),
        (
            NODES,
            PODS.replace(",1,470,P100|T4,5,60", ""),
            "pods.csv line 2: expected a value for each",
        ),
        (NODES, PODS.replace("1,470", "0,0"), "pods.csv has no pod that asks for a card"),
        (NODES, PODS.replace("1,470", "0,470"), "pods.csv line 2: num_gpu is 0 with gpu_milli 470"),
        (NODES, PODS.replace("4000,", "9" * 5000 + ","), "pods.csv line 2: cpu_milli is '9999"),
        (NODES, PODS.replace("4000,100", "4,000,100"), "line 2: expected 8 values, as the first"),
        (NODES, PODS.replace("gpu_spec", "num_gpu"), "pods.csv: the first line has 'num_gpu' tw"),
        ("", PODS, "nodes.csv is empty: expected a first line sn,cpu_milli,"),
        (NODES, " \n", "pods.csv is empty: expected a first line name,cpu_milli,"),
        (NODES, PODS.splitlines()[0], "pods.csv has no pod that asks for a card"),
        (NODES, "x" * 200_000, "pods.csv line 1: not CSV: field larger than field limit"),
        (NODES, PODS.replace("5,60", "-5,60"), "creation_time is '-5': expected seconds"),
        (NODES, PODS.replace("4000,", "-4000,"), "pods.csv line 2: cpu_milli is '-4000'"),
        (NODES, PODS.replace("name,", ""), "pods.csv: the first line lacks name: name,cpu_milli"),
    ],
)
def test_a_mistake_is_named_with_its_line(nodes: str, pods: str, sentence: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read(nodes, pods)

    assert sentence in str(raised.value)


def test_columns_that_nobody_looks_at_are_named_but_for_openbs_own() -> None:
    pods = PODS.replace("creation_time", "qos").replace("deletion_time", "gpu_mem_mib")

    assert read(NODES.replace("model", "model,rack"), pods).unread == (
        "nodes.csv: rack",
        "pods.csv: gpu_mem_mib",
    )
    assert read().unread == ()


def test_more_pods_than_a_run_can_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openb, "_MAX_PODS", 1)

    with pytest.raises(
        InvalidRequest, match=r"pods.csv has more than 1 pods: expected a part of them"
    ):
        read()


def test_more_cards_than_a_run_can_hold_are_refused() -> None:
    nodes = NODES + "".join(f"n{number},1,1,1024,T4\n" for number in range(1000))

    with pytest.raises(
        InvalidRequest, match=r"nodes.csv has 1024002 cards: expected at most 1000000"
    ):
        read(nodes)


def test_pods_of_a_model_that_no_node_has_are_counted() -> None:
    assert without_a_card(read()) == {}
    assert without_a_card(read(pods=PODS.replace("P100|T4", "T4|H900"))) == {"T4|H900": 1}
    # As where a pod names a type: a part of the name will do.
    assert without_a_card(read(pods=PODS.replace("P100|T4", "p1"))) == {}
