"""A pod that fits and waits is our fault: that is claimed only where it is certain."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hami_scheduler.placement.waiting_pods import WaitingPod, WaitingPods
from hami_scheduler.ports.ledger import CardReader, LastRefusal
from hami_scheduler.reconcile.fitting_pods import MAX_SHAPES, Fits, WaitingFigures
from hamicommon import device_config
from hamicommon.domain.devices import DeviceUsage
from hamicommon.domain.ids import NodeName, PodUid
from hamicommon.errors import Unavailable
from hamicommon.placement.cluster.view import CardState
from hamicommon.placement.rules import NOT_ASKED, OTHER, POD_REFUSED
from hamicommon.process.bulkhead import Bulkhead
from hamicommon.vendors.pod_request import pod_request
from hamicommon.vendors.registry import Vendors

from tests.unit.devices import a_device
from tests.unit.scheduler.states import state_of

VENDORS = Vendors.from_config(device_config.load(None))
CREATED_AT = 1767225600.0
SHORT = "CardInsufficientMemory"


class NeverAsked(CardReader):
    """The view is filled by hand."""


class Ledger:
    """A ledger with waiting pods."""

    def __init__(self) -> None:
        self.last: dict[str, LastRefusal] = {}
        self.room: dict[tuple[str, str], int] = {}
        self.away = False

    async def last_refusals(self, uids: Sequence[str]) -> dict[str, LastRefusal]:
        if self.away:
            raise Unavailable("the ledger is away")
        return {uid: self.last[uid] for uid in uids if uid in self.last}

    async def quota_room(self) -> dict[tuple[str, str], int]:
        return self.room


class Bench:
    """Two nodes with a card of 10,000 MiB each."""

    def __init__(self) -> None:
        self.view = state_of(NeverAsked(), VENDORS.rules)
        for name in ("a", "b"):
            device = a_device(f"GPU-{name}", type="A100", memory_mib=10_000)
            self.view.cluster.set_node(NodeName(name), [CardState(DeviceUsage(device=device), 1)])
        self.waiting, self.ledger, self.now = WaitingPods(), Ledger(), 5_000.0
        self.silent: frozenset[NodeName] = frozenset()
        self.bulkhead = Bulkhead()
        self.figures = WaitingFigures(
            view=self.view,
            waiting=self.waiting,
            refusals=self.ledger,
            vendors=VENDORS,
            silent=lambda: self.silent,
            bulkhead=self.bulkhead,
            clock=lambda: self.now,
        )

    def waits(
        self, uid: str, *, memory_mib: int = 100, reason: str | None = SHORT, candidates: int = 2
    ) -> None:
        limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(memory_mib)}
        body = {
            "metadata": {"name": uid, "namespace": "default", "uid": uid},
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
        }
        self.waiting.add(
            WaitingPod(
                uid=PodUid(uid),
                namespace="default",
                name=uid,
                created_at="2026-01-01T00:00:00Z",
                priority=0,
                request=pod_request(body, VENDORS),
            )
        )
        if reason is not None:
            self.ledger.last[uid] = LastRefusal(
                reason=reason, candidates=candidates, unregistered=0
            )


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_pod_that_fits_everywhere_is_shown_since_it_was_first_seen_to(bench: Bench) -> None:
    bench.waits("u")
    assert await bench.figures.oldest() == {(SHORT, Fits.TRUE): 5_000.0}
    bench.now = 5_100.0

    assert await bench.figures.oldest() == {(SHORT, Fits.TRUE): 5_000.0}


async def test_a_pod_that_did_not_fit_in_between_begins_again(bench: Bench) -> None:
    bench.waits("u", memory_mib=9_000)
    await bench.figures.oldest()
    bench.silent = frozenset({NodeName("a"), NodeName("b")})
    assert await bench.figures.oldest() == {(SHORT, Fits.FALSE): CREATED_AT}
    bench.silent, bench.now = frozenset(), 5_100.0

    assert await bench.figures.oldest() == {(SHORT, Fits.TRUE): 5_100.0}


async def test_what_selectors_may_keep_away_is_unknown(bench: Bench) -> None:
    bench.waits("u", candidates=1)

    assert await bench.figures.oldest() == {(SHORT, Fits.UNKNOWN): CREATED_AT}


async def test_nodes_without_cards_do_not_make_it_everywhere(bench: Bench) -> None:
    bench.waits("u")
    bench.ledger.last["u"] = LastRefusal(reason=SHORT, candidates=3, unregistered=2)

    assert await bench.figures.oldest() == {(SHORT, Fits.UNKNOWN): CREATED_AT}


async def test_a_pod_that_is_too_large_does_not_fit(bench: Bench) -> None:
    bench.waits("u", memory_mib=20_000)

    assert await bench.figures.oldest() == {(SHORT, Fits.FALSE): CREATED_AT}


async def test_a_quota_without_room_keeps_it_waiting(bench: Bench) -> None:
    bench.waits("u")
    bench.ledger.room["default", "nvidia.com/gpumem"] = 99

    assert await bench.figures.oldest() == {(SHORT, Fits.FALSE): CREATED_AT}

    bench.ledger.room["default", "nvidia.com/gpumem"] = 100
    assert await bench.figures.oldest() == {(SHORT, Fits.TRUE): 5_000.0}


async def test_a_pod_that_is_refused_itself_never_fits(bench: Bench) -> None:
    bench.waits("u", reason="PodRefused: container main sets LD_PRELOAD")

    assert await bench.figures.oldest() == {(POD_REFUSED, Fits.FALSE): CREATED_AT}


async def test_a_pod_that_was_never_asked_about_is_unknown(bench: Bench) -> None:
    bench.waits("u", reason=None)

    assert await bench.figures.oldest() == {(NOT_ASKED, Fits.UNKNOWN): CREATED_AT}


async def test_reasons_are_a_small_set_whatever_a_rule_wrote(bench: Bench) -> None:
    bench.waits("u", reason="card GPU-0 is on fire", memory_mib=20_000)

    assert await bench.figures.oldest() == {(OTHER, Fits.FALSE): CREATED_AT}


async def test_shapes_beyond_what_one_look_takes_are_unknown(bench: Bench) -> None:
    for number in range(MAX_SHAPES + 1):
        bench.waits(f"u{number:03}", memory_mib=100 + number)

    assert set(await bench.figures.oldest()) == {(SHORT, Fits.TRUE), (SHORT, Fits.UNKNOWN)}


async def test_nobody_waits_and_nothing_is_shown(bench: Bench) -> None:
    bench.ledger.away = True

    assert await bench.figures.oldest() == {}


async def test_without_the_ledger_nothing_is_claimed(bench: Bench) -> None:
    bench.waits("u")
    bench.ledger.away = True

    with pytest.raises(Unavailable):
        await bench.figures.oldest()
