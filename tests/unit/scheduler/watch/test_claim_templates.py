"""Templates of converted pods: made once, kept while needed, and never left behind."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from hami_scheduler.watch.claim_templates import CARD_SIZES, IDLE_S, ClaimTemplates
from hamicommon.dra.shapes import ClaimShape, SliceShape
from hamicommon.errors import Conflict, Forbidden, NotFound
from hamicommon.k8s.annotations import CLAIM_SHAPE
from hamicommon.k8s.types import Json
from hypothesis import given, settings
from hypothesis import strategies as st

ONE = ClaimShape(slices=(SliceShape(count=1, memory_mib=100, memory_percent=0, core_percent=0),))
PART = ClaimShape(slices=(SliceShape(count=1, memory_mib=0, memory_percent=50, core_percent=0),))


class ApiServer:
    """Templates by (namespace, name); `terminating`: namespaces that take nothing new."""

    def __init__(self) -> None:
        self.templates: dict[tuple[str, str], Json] = {}
        self.terminating: set[str] = set()
        self.writes = 0
        self._uids: Iterator[int] = count()

    async def create(self, namespace: str, body: Json) -> Json:
        self.writes += 1
        if namespace in self.terminating:
            raise Forbidden("the namespace is being deleted")
        key = namespace, body["metadata"]["name"]
        if key in self.templates:
            raise Conflict("it is there")
        metadata = body["metadata"] | {"uid": f"t{next(self._uids)}"}
        self.templates[key] = body | {"metadata": metadata}
        return self.templates[key]

    async def delete(self, namespace: str, name: str, *, uid: str) -> None:
        self.writes += 1
        found = self.templates.get((namespace, name))
        if found is None:
            raise NotFound("it is gone")
        if found["metadata"]["uid"] != uid:
            raise Conflict("another one")
        del self.templates[namespace, name]


class Cluster:
    """An API server, and what the informers bring of it."""

    def __init__(self) -> None:
        self.api = ApiServer()
        self.now_s = 0.0
        self.sizes_mib = [81920]
        self.synced = True
        self.replica = self.another()
        self.shown: dict[tuple[str, str], Json] = {}

    def another(self) -> ClaimTemplates:
        return ClaimTemplates(
            self.api,
            card_sizes_mib=lambda: self.sizes_mib,
            clock=lambda: self.now_s,
        )

    def watch(self) -> None:
        """The informer of templates catches up."""
        for key, old in list(self.shown.items()):
            if self.api.templates.get(key) != old:
                del self.shown[key]
                self.replica.template_gone(old)
        for key, new in self.api.templates.items():
            if key not in self.shown:
                self.shown[key] = new
                self.replica.template_seen(new)

    async def turn(self, seconds: float = 0.0) -> None:
        self.now_s += seconds
        await self.replica.revisit(listed=self.synced)
        await self.replica.queue.run_due()
        self.watch()


def pod(uid: str, shape: ClaimShape | str = ONE, *, phase: str = "Pending") -> Json:
    text = shape if isinstance(shape, str) else shape.text
    metadata = {"namespace": "team", "name": uid, "uid": uid, "annotations": {CLAIM_SHAPE: text}}
    return {"metadata": metadata, "status": {"phase": phase}}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


async def test_pods_of_one_shape_share_a_template_that_goes_after_the_last(
    cluster: Cluster,
) -> None:
    for number in range(20):
        cluster.replica.pod_seen(pod(f"p{number}"))
    await cluster.turn()
    await cluster.turn()
    assert list(cluster.api.templates) == [("team", ONE.template_name)]
    assert cluster.api.writes == 1

    for number in range(20):
        cluster.replica.pod_gone(pod(f"p{number}"))
    await cluster.turn()
    await cluster.turn(IDLE_S - 1)
    assert cluster.api.templates
    await cluster.turn(1)
    assert not cluster.api.templates


async def test_a_rollout_that_never_leaves_the_shape_without_a_pod_for_long_writes_nothing(
    cluster: Cluster,
) -> None:
    for number in range(10):
        cluster.replica.pod_seen(pod(f"p{number}"))
        await cluster.turn(IDLE_S - 1)
        cluster.replica.pod_gone(pod(f"p{number}"))
        await cluster.turn()
    assert cluster.api.writes == 1


async def test_nothing_is_deleted_before_pods_and_templates_were_listed(cluster: Cluster) -> None:
    cluster.replica.pod_seen(pod("p"))
    await cluster.turn()
    cluster.replica = cluster.another()
    cluster.shown.clear()
    cluster.synced = False
    cluster.watch()
    await cluster.turn()
    await cluster.turn(10 * IDLE_S)
    assert cluster.api.templates
    cluster.synced = True
    await cluster.turn()
    cluster.replica.pod_seen(pod("p"))
    await cluster.turn(10 * IDLE_S)
    assert cluster.api.templates


async def test_a_template_that_somebody_deletes_under_its_pods_is_made_again(
    cluster: Cluster,
) -> None:
    cluster.replica.pod_seen(pod("p"))
    await cluster.turn()
    cluster.api.templates.clear()
    cluster.watch()
    await cluster.turn()
    assert len(cluster.api.templates) == 1


async def test_pods_that_have_ended_need_no_template(cluster: Cluster) -> None:
    cluster.replica.pod_seen(pod("p", phase="Succeeded"))
    await cluster.turn()
    assert cluster.api.writes == 0
    cluster.replica.pod_seen(pod("q"))
    await cluster.turn()
    cluster.replica.pod_seen(pod("q", phase="Failed"))
    await cluster.turn()
    await cluster.turn(IDLE_S)
    assert not cluster.api.templates


async def test_what_a_tenant_wrote_makes_no_template(cluster: Cluster) -> None:
    cluster.replica.pod_seen(pod("p", "forged"))
    cluster.replica.pod_seen({"metadata": {"namespace": "team", "name": "q", "uid": "q"}})
    await cluster.turn()
    assert cluster.api.writes == 0


async def test_a_namespace_that_is_being_deleted_is_tried_seldom_and_then_never(
    cluster: Cluster,
) -> None:
    cluster.api.terminating.add("team")
    cluster.replica.pod_seen(pod("p"))
    for _ in range(5):
        await cluster.turn()
    assert cluster.api.writes == 1
    cluster.replica.pod_gone(pod("p"))
    await cluster.turn(IDLE_S)
    assert cluster.api.writes == 1


async def test_parts_of_cards_follow_the_sizes_that_the_cluster_has(cluster: Cluster) -> None:
    cluster.sizes_mib = []
    cluster.replica.pod_seen(pod("p", PART))
    await cluster.turn()
    assert not cluster.api.templates
    cluster.sizes_mib = [81920, 40960]
    cluster.replica.pod_seen(pod("q", PART))
    await cluster.turn()
    assert alternatives(cluster) == ["mib-40960", "mib-81920"]
    cluster.sizes_mib = [24576]
    await cluster.turn()
    await cluster.turn()
    assert alternatives(cluster) == ["mib-24576"]


def alternatives(cluster: Cluster) -> list[str]:
    [template] = cluster.api.templates.values()
    [request] = template["spec"]["spec"]["devices"]["requests"]
    return [each["name"] for each in request["firstAvailable"]]


STEP = st.one_of(
    st.tuples(st.just("come"), st.integers(0, 3), st.sampled_from([ONE, PART])),
    st.tuples(st.just("go"), st.integers(0, 3)),
    st.tuples(st.just("wait"), st.sampled_from([0.0, IDLE_S / 2, IDLE_S])),
    st.tuples(st.just("lose")),
    st.tuples(st.just("restart")),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(STEP, max_size=20))
async def test_whatever_comes_and_goes_each_pod_has_its_template_and_nothing_leaks(
    steps: list[tuple[object, ...]],
) -> None:
    cluster = Cluster()
    pods: dict[object, Json] = {}
    for step in steps:
        match step:
            case ("come", number, ClaimShape() as shape):
                if number in pods:
                    cluster.replica.pod_gone(pods[number])
                pods[number] = pod(f"{number}-{len(steps)}-{shape.template_name}", shape)
                cluster.replica.pod_seen(pods[number])
            case ("go", number) if number in pods:
                cluster.replica.pod_gone(pods.pop(number))
            case ("wait", float() as seconds):
                await cluster.turn(seconds)
            case ("lose",):
                cluster.api.templates.clear()
                cluster.watch()
            case ("restart",):
                cluster.replica, cluster.shown = cluster.another(), {}
                cluster.watch()
                for each in pods.values():
                    cluster.replica.pod_seen(each)
    for _ in range(3):
        await cluster.turn()
    for _ in range(3):
        await cluster.turn(IDLE_S)
    wanted = {each["metadata"]["annotations"][CLAIM_SHAPE] for each in pods.values()}
    assert len(cluster.api.templates) == len(wanted)


async def test_a_template_of_a_release_in_which_the_ledger_allocated_is_made_again(
    cluster: Cluster,
) -> None:
    cluster.replica.pod_seen(pod("p", ONE))
    await cluster.turn()
    before = cluster.api.templates["team", ONE.template_name]
    before["metadata"]["annotations"] = {CARD_SIZES: "led"}
    await cluster.turn()
    await cluster.turn()

    made = cluster.api.templates["team", ONE.template_name]
    assert made["metadata"]["uid"] != before["metadata"]["uid"]
