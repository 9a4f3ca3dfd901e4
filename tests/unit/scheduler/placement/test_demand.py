"""Every pod counts once, and the ledger's latest decisions count after a restart."""

from dataclasses import replace

from hami_scheduler.placement.waiting_pods import ArrivalCounts
from hamicommon.domain.ids import PodUid
from hamicommon.domain.requests import PodRequest
from hamicommon.placement.cluster.arrivals import shape_of
from hamicommon.placement.cluster.view import ClusterView

from tests.unit.hamicommon.placement.clusters import cards, pod


class Decisions:
    """The ledger's, newest first."""

    def __init__(self, *latest: PodRequest) -> None:
        self.latest = list(latest)

    async def arrivals(self, limit: int) -> list[PodRequest]:
        return self.latest[:limit]


def core_request(uid: str, core_percent: int = 30) -> PodRequest:
    return replace(pod(cards(memory_mib=1, core_percent=core_percent)), uid=PodUid(uid))


def parts(view: ClusterView) -> dict[int, float]:
    mix = view.usual.mix
    return {
        shape.request.core_percent: part
        for shape, part in zip(mix.shapes, mix.parts.tolist(), strict=True)
    }


def test_a_pod_that_comes_again_counts_once() -> None:
    view = ClusterView()
    counts = ArrivalCounts(view, Decisions())  # type: ignore[arg-type] # the used methods
    for _ in range(20):
        counts.count(core_request("a"))
    counts.count(core_request("b", 50))

    found = parts(view)
    assert set(found) == {30, 50, 100}
    assert abs(found[30] - found[50]) < 0.01


async def test_after_a_restart_the_mix_is_what_the_ledger_has() -> None:
    before, after = ClusterView(), ClusterView()
    arrived = [core_request(f"u{number}", 10 + number % 5 * 20) for number in range(400)]
    counts = ArrivalCounts(before, Decisions())  # type: ignore[arg-type] # the used methods
    for request in arrived:
        counts.count(request)
    restarted = ArrivalCounts(after, Decisions(*reversed(arrived)))  # type: ignore[arg-type] # as above
    await restarted.restore()
    await restarted.restore()

    assert restarted.restored
    assert shape_of(arrived[0]) in after.usual.mix.shapes
    assert after.usual.mix.distance(before.usual.mix) < 1e-9
