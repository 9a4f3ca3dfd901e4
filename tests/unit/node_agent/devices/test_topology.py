"""HAMi's scores of pairs of cards (protocol 5.6)."""

import pytest
from hami_node_agent.devices.topology import CardLinks, Meeting, contradictions, pair_scores
from hamicommon.domain.ids import GpuUuid

A, B = GpuUuid("a"), GpuUuid("b")


def two(
    there: int,
    back: int,
    *,
    meeting: int | None = None,
    switch_links: tuple[int, int] = (0, 0),
) -> int:
    def card(one: GpuUuid, other: GpuUuid, links: int, switches: int) -> CardLinks:
        return CardLinks(
            uuid=one,
            meetings={} if meeting is None else {other: meeting},
            nvlinks={other: links} if links else {},
            switch_links=switches,
        )

    scores = pair_scores([card(A, B, there, switch_links[0]), card(B, A, back, switch_links[1])])
    assert scores[A][B] == scores[B][A]
    return scores[A][B]


def test_hamis_example_of_four_cards() -> None:
    links = {0: {1: 1, 2: 1, 3: 2}, 1: {0: 1, 2: 2, 3: 1}, 2: {0: 1, 1: 2, 3: 2}}
    links[3] = {0: 2, 1: 1, 2: 2}
    cards = [
        CardLinks(
            uuid=GpuUuid(f"gpu{one}"),
            meetings={},
            nvlinks={GpuUuid(f"gpu{other}"): count for other, count in row.items()},
        )
        for one, row in links.items()
    ]

    assert pair_scores(cards) == {
        "gpu0": {"gpu1": 100, "gpu2": 100, "gpu3": 200},
        "gpu1": {"gpu0": 100, "gpu2": 200, "gpu3": 100},
        "gpu2": {"gpu0": 100, "gpu1": 200, "gpu3": 200},
        "gpu3": {"gpu0": 200, "gpu1": 100, "gpu2": 200},
    }


@pytest.mark.parametrize(
    ("meeting", "score"),
    [
        (Meeting.SAME_BOARD, 60),
        (Meeting.SINGLE_SWITCH, 50),
        (Meeting.SEVERAL_SWITCHES, 40),
        (Meeting.HOST_BRIDGE, 30),
        (Meeting.SAME_CPU, 20),
        (Meeting.ACROSS_CPUS, 10),
        (99, 0),
        (None, 0),
    ],
)
def test_where_two_cards_meet_counts_beside_their_links(meeting: int | None, score: int) -> None:
    assert two(0, 0, meeting=meeting) == score
    assert two(12, 12, meeting=meeting) == 1200 + score


def test_a_number_of_links_that_cannot_be_counts_nothing() -> None:
    assert two(18, 18) == 1800
    assert two(19, 19, meeting=Meeting.SAME_CPU) == 20


def test_a_driver_that_contradicts_itself_is_trusted_in_nothing() -> None:
    assert two(2, 1, meeting=Meeting.SAME_BOARD) == 0


def test_cards_at_a_switch_reach_each_other_by_it() -> None:
    assert two(0, 0, switch_links=(12, 18)) == 1200
    assert two(0, 0, switch_links=(12, 0)) == 0
    assert two(3, 3, switch_links=(12, 12)) == 300


def test_a_pair_that_contradicts_itself_is_reported_once_and_no_other() -> None:
    def card(uuid: str, **nvlinks: int) -> CardLinks:
        links = {GpuUuid(other): count for other, count in nvlinks.items()}
        return CardLinks(uuid=GpuUuid(uuid), meetings={}, nvlinks=links)

    cards = [card("a", b=2, c=4), card("b", a=1), card("c", a=4)]

    assert contradictions(cards) == ((GpuUuid("a"), GpuUuid("b")),)
