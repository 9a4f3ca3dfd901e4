"""A person's view of a pod: the place of its slices, or the reason why it waits."""

from typing import Any

import pytest
from hamictl.view.cluster_state import ClusterSummary, cards_by_node, node_rows, pod_rows
from hamictl.view.lists import nodes


def a_pod(name: str, **status: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"u-{name}",
            "creationTimestamp": "2026-11-20T00:00:00Z",
        },
        "spec": {},
        "status": status,
    }


def test_a_waiting_pod_shows_the_schedulers_reason() -> None:
    condition = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}
    state = ClusterSummary(pods=[a_pod("w", phase="Pending", conditions=[condition])])

    assert [row["detail"] for row in pod_rows(state)] == ["0/3 nodes are available"]


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("allocated", "c: 4 GiB, 30 % cores of card 2"),
        ("reserved", "room on n: c: 4 GiB, 30 % cores of card 2"),
    ],
)
def test_a_pod_shows_its_slices_or_its_room_and_their_cards(state: str, text: str) -> None:
    share = {"container": "c", "device_uuid": "GPU-1", "memory_mib": 4096, "core_percent": 30}
    summary = ClusterSummary(
        pods=[a_pod("p", phase="Running")],
        devices=[{"uuid": "GPU-1", "index": 2}],
        allocations=[{"pod_uid": "u-p", "state": state, "node": "n", "devices": [share]}],
    )

    assert [row["detail"] for row in pod_rows(summary)] == [text]


def test_a_crashing_container_shows_before_the_phase() -> None:
    waiting = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    state = ClusterSummary(pods=[a_pod("c", phase="Running", containerStatuses=[waiting])])

    assert [row["phase"] for row in pod_rows(state)] == ["CrashLoopBackOff"]


def a_card(node: str, **changes: object) -> dict[str, object]:
    given = {"node": node, "used_slots": 0, "healthy": True, "used_memory_mib": 0}
    return {**given, "memory_mib": 81920, **changes}


def test_a_nodes_row_has_its_cards_and_what_of_them_is_granted() -> None:
    node = {"metadata": {"name": "n1"}, "status": {}}
    held = a_card("n1", used_slots=2, used_memory_mib=4096)
    cards = [held, a_card("n1", healthy=False), a_card("n2"), a_card("n1", present=False)]

    [row] = node_rows(ClusterSummary(nodes=[node], devices=cards))
    assert (row["card_count"], row["held_card_count"], row["sick_card_count"]) == (2, 1, 1)
    assert (row["used_memory_mib"], row["memory_mib"]) == (4096, 163840)


def test_a_cordoned_node_has_kubectls_status() -> None:
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    found = [
        {"metadata": {"name": name}, "spec": spec, "status": status}
        for name, spec in (("n1", {}), ("n2", {"unschedulable": True}))
    ]
    records = nodes(node_rows(ClusterSummary(nodes=found)), None)
    [column] = [each for each in records.columns if each.header == "STATUS"]

    assert [column.show(row) for row in records.rows] == ["Ready", "Ready,SchedulingDisabled"]


def test_the_wide_list_of_nodes_has_each_card_in_one_line() -> None:
    node = {"metadata": {"name": "n1"}, "status": {}}
    cards = [
        a_card("n1", index=0, used_memory_mib=31744),
        a_card("n1", index=1, healthy=False),
        a_card("n2", index=0),
    ]
    state = ClusterSummary(nodes=[node], devices=cards)

    shown = nodes(node_rows(state), None, cards_by_node(state))

    [wide] = [column for column in shown.columns if column.header.startswith("GIB")]
    assert wide.wide
    assert wide.show(shown.rows[0]) == "0 31/80, 1 ✖ 0/80"
    unknown = nodes(shown.rows, None)
    assert next(column.show(shown.rows[0]) for column in unknown.columns if column.wide) == "?"


def test_cards_that_no_scheduler_names_are_unknown_and_not_none() -> None:
    node = {"metadata": {"name": "n1"}, "status": {}}

    [row] = node_rows(ClusterSummary(nodes=[node], devices=None))
    assert (row["card_count"], row["memory_mib"]) == (None, None)


def test_a_node_that_offers_nothing_yet_is_unknown_not_zero() -> None:
    node = {"metadata": {"name": "n"}, "status": {}}

    [row] = node_rows(ClusterSummary(nodes=[node]))

    assert (row["allocatable"], row["ready"], row["mounts"]) == (None, None, None)


def test_nodes_of_one_rack_stand_together_and_others_last() -> None:
    names = ("a", "b", "c", "d")
    state = ClusterSummary(
        nodes=[{"metadata": {"name": name}, "status": {}} for name in names],
        devices=[
            a_card("a", node_group="rack-2"),
            a_card("b", node_group=None),
            a_card("c", node_group="rack-1"),
            a_card("d", node_group="zone-1"),
        ],
    )

    records = nodes(node_rows(state), None)

    columns = [each for each in records.columns if each.header in ("NAME", "GROUP")]
    shown = [[column.show(row) for column in columns] for row in records.rows]
    assert shown == [["c", "rack-1"], ["a", "rack-2"], ["d", "zone-1"], ["b", "-"]]


def test_where_no_node_has_a_rack_there_is_no_column_of_it() -> None:
    node = {"metadata": {"name": "n1"}, "status": {}}
    # A scheduler of an older version has no such field.
    rows = node_rows(ClusterSummary(nodes=[node], devices=[a_card("n1")]))

    assert "GROUP" not in [column.header for column in nodes(rows, None).columns]


def test_a_nodes_row_has_its_way_of_binding_with_the_reason() -> None:
    written = "lock: kubelet v1.36.2, containerd 1.6.20: CDI is unknown there before 1.7"
    node = {"metadata": {"name": "n", "annotations": {"hami.io/binding": written}}, "status": {}}

    [row] = node_rows(ClusterSummary(nodes=[node]))

    assert row["binding"] == "lock"
    assert row["binding_reason"] == written.partition(": ")[2]
    headers = [column.header for column in nodes([row], None).columns if not column.wide]
    assert headers[-1] == "BINDING"
