"""Which pods may end follows from Kubernetes' objects and the ledger's rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hamicommon.domain.ids import PodUid
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.pod_groups import GROUP_LABEL
from hamicommon.k8s.types import Json
from hamicommon.preemption.holders import (
    MIRROR,
    Wish,
    budget_room,
    for_holders,
    holders_of,
    is_selected,
    protected_namespaces,
    wish_of,
)

CLASSES: list[Json] = [
    {"metadata": {"name": "low"}, "value": -5},
    {"metadata": {"name": "usual"}, "value": 100, "globalDefault": True},
    {"metadata": {"name": "polite"}, "value": 900, "preemptionPolicy": "Never"},
]


NOW = datetime(2026, 11, 30, 12, 30, tzinfo=UTC)


def slice_row(pod: str, **facts: Any) -> dict[str, Any]:
    return {
        "allocation_id": f"grant-of-{pod}",
        "pod_uid": pod,
        "namespace": "team",
        "pod_name": pod,
        "node": "n",
        "state": "allocated",
        "origin": "scheduled",
        "container_index": 0,
        "container_name": "c",
        "role": "app",
        "vendor": "NVIDIA",
        "device_uuid": "a",
        "memory_mib": 4000,
        "core_percent": 30,
        "slots": 1,
        "detail": None,
        "releasing_at": None,
    } | facts


def a_pod(name: str, spec: Json | None = None, **metadata: Any) -> Json:
    about = {"name": name, "namespace": "team", "uid": name, "labels": {"app": "web"}}
    created = {"creationTimestamp": "2026-11-30T12:00:00Z"}
    return {"metadata": about | created | metadata, "spec": {"priority": 7} | (spec or {})}


def owned_by(kind: str, name: str) -> list[Json]:
    return [{"kind": kind, "name": name, "uid": "u", "controller": True}]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, Wish(priority=100)),
        ({"priorityClassName": "low"}, Wish(priority=-5)),
        ({"priorityClassName": "polite"}, Wish(priority=900, may_preempt=False)),
        ({"priority": 3, "preemptionPolicy": "Never"}, Wish(priority=3, may_preempt=False)),
    ],
)
def test_a_pods_priority_is_its_own_or_that_of_its_class(spec: Json, expected: Wish) -> None:
    assert wish_of({"spec": spec}, CLASSES) == expected


def test_a_priority_class_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(InvalidRequest, match=r"'hihg', and no PriorityClass.*low, polite, usual"):
        wish_of({"spec": {"priorityClassName": "hihg"}}, CLASSES)


def test_a_holder_has_its_footprint_and_its_owner() -> None:
    rows = [
        slice_row("web", memory_mib=1000),
        slice_row("web", container_index=1, container_name="d", memory_mib=500),
        slice_row("other", device_uuid="b"),
    ]
    pods = {
        PodUid("web"): for_holders(a_pod("web", ownerReferences=owned_by("Job", "train-3"))),
        PodUid("other"): for_holders(a_pod("other", deletionTimestamp="2026-11-30T12:30:00Z")),
    }

    web, other = holders_of(rows, pods, [], (), now=NOW)

    assert (web.pod, web.priority, web.owner, web.shield) == ("team/web", 7, "Job train-3", "")
    assert [(each.uuid, each.memory_mib, each.slots) for each in web.held] == [("a", 1500, 2)]
    assert other.is_ending
    assert other.owner == ""


@pytest.mark.parametrize(
    ("pod", "row", "shield"),
    [
        (a_pod("web"), {"state": "binding"}, "that are starting"),
        (a_pod("web"), {"origin": "claim"}, "with cards by ResourceClaim"),
        (a_pod("web", labels={GROUP_LABEL: "g"}), {}, "of groups that start together"),
        (
            a_pod("web", {"schedulingGroup": {"podGroupName": "g"}}),
            {},
            "of groups that start together",
        ),
        (a_pod("web", {"priority": 2_000_000_000}), {}, "that are critical to the cluster"),
        (a_pod("web", ownerReferences=owned_by("DaemonSet", "d")), {}, "of DaemonSets"),
        (
            a_pod("web", annotations={MIRROR: "1"}),
            {},
            "that are static pods",
        ),
        (a_pod("web", labels={"kueue.x-k8s.io/managed": "true"}), {}, "that Kueue manages"),
        (a_pod("web", annotations={"kueue.x-k8s.io/workload": "w"}), {}, "that Kueue manages"),
        (
            a_pod("web", {"terminationGracePeriodSeconds": 900}),
            {},
            "whose grace period is longer than 600 s",
        ),
        (
            a_pod("web", deletionTimestamp="2026-11-30T11:59:00Z"),
            {},
            "that are deleted and have not ended within their grace period",
        ),
    ],
)
def test_pods_that_may_not_end_have_the_reason(pod: Json, row: dict[str, Any], shield: str) -> None:
    [found] = holders_of(
        [slice_row("web", **row)], {PodUid("web"): for_holders(pod)}, [], (), now=NOW
    )

    assert (found.shield, found.is_ending) == (shield, False)


@pytest.mark.parametrize(("gone_s", "is_ending"), [(None, True), (30, True), (31, False)], ids=str)
def test_cards_of_a_pod_that_is_gone_are_on_their_way_back_unless_a_program_outlives_it(
    gone_s: int | None, is_ending: bool
) -> None:
    since = {} if gone_s is None else {"releasing_at": NOW - timedelta(seconds=gone_s)}
    [found] = holders_of([slice_row("web", **since)], {}, [], (), now=NOW)
    assert (found.is_ending, bool(found.shield)) == (is_ending, not is_ending)


@pytest.mark.parametrize(
    ("origin", "state", "is_ending"),
    [
        ("adopted", "allocated", True),
        ("claim", "allocated", False),
        ("unmanaged", "allocated", False),
        ("claim", "releasing", True),
    ],
)
def test_pods_of_other_schedulers_are_not_gone_because_nobody_watches_them(
    origin: str, state: str, is_ending: bool
) -> None:
    [found] = holders_of([slice_row("web", origin=origin, state=state)], {}, [], (), now=NOW)
    assert (found.is_ending, bool(found.shield)) == (is_ending, not is_ending)


def test_pods_of_protected_namespaces_may_not_end() -> None:
    namespaces: list[Json] = [
        {"metadata": {"name": "team", "labels": {"hami.io/preemptible": "false"}}},
        {"metadata": {"name": "free", "labels": {"hami.io/preemptible": "true"}}},
        {"metadata": {"name": "plain"}},
    ]
    protected = protected_namespaces(namespaces, ["kube-system"])

    assert protected == {"kube-system", "team"}
    [found] = holders_of(
        [slice_row("web")], {PodUid("web"): for_holders(a_pod("web"))}, [], protected, now=NOW
    )
    assert found.shield == "in namespace team, which is protected"


def test_a_holder_counts_for_the_budgets_that_select_it() -> None:
    def budget(name: str, namespace: str, selector: Json | None, allowed: int | None) -> Json:
        status = {} if allowed is None else {"disruptionsAllowed": allowed}
        metadata = {"name": name, "namespace": namespace}
        return {"metadata": metadata, "spec": {"selector": selector}, "status": status}

    budgets = [
        budget("web", "team", {"matchLabels": {"app": "web"}}, 1),
        budget("all", "team", {}, None),
        budget("other", "team", {"matchLabels": {"app": "db"}}, 1),
        budget("elsewhere", "free", {}, 1),
    ]

    [found] = holders_of(
        [slice_row("web")], {PodUid("web"): for_holders(a_pod("web"))}, budgets, (), now=NOW
    )

    assert found.budgets == ("team/web", "team/all")
    assert budget_room(budgets) == {
        "team/web": 1,
        "team/all": 0,
        "team/other": 1,
        "free/elsewhere": 1,
    }


@pytest.mark.parametrize(
    ("operator", "values", "matches"),
    [
        ("In", ["web", "db"], True),
        ("In", ["db"], False),
        ("NotIn", ["db"], True),
        ("NotIn", ["web"], False),
        ("Exists", None, True),
        ("DoesNotExist", None, False),
    ],
)
def test_selectors_match_as_kubernetes_matches_them(
    operator: str, values: list[str] | None, matches: bool
) -> None:
    expression = {"key": "app", "operator": operator, "values": values}

    assert is_selected({"matchExpressions": [expression]}, {"app": "web"}) is matches
    assert is_selected({"matchExpressions": [expression]}, {}) is (
        operator in ("NotIn", "DoesNotExist")
    )


def test_no_selector_selects_nothing_and_an_empty_one_everything() -> None:
    assert not is_selected(None, {"app": "web"})
    assert is_selected({}, {"app": "web"})
