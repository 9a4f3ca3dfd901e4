"""A card's capacity for an allocation, and the transitions between its states."""

import pytest
from hamicommon.domain.allocations import (
    ContainerGrant,
    DeviceShare,
    footprints,
)
from hamicommon.domain.ids import GpuUuid
from hamicommon.domain.requests import Role
from hypothesis import given
from hypothesis import strategies as st


def grant(role: Role, *shares: tuple[str, int, int]) -> ContainerGrant:
    return ContainerGrant(
        index=0,
        name="c",
        role=role,
        shares=tuple(
            DeviceShare(uuid=GpuUuid(uuid), vendor="NVIDIA", memory_mib=memory, core_percent=core)
            for uuid, memory, core in shares
        ),
    )


@pytest.mark.parametrize(
    ("made", "held"),
    [
        pytest.param(
            [grant("app", ("a", 100, 10)), grant("app", ("a", 50, 5))], (2, 150, 15), id="apps"
        ),
        pytest.param(
            [grant("init", ("a", 100, 10)), grant("init", ("a", 50, 50))],
            (1, 100, 50),
            id="init containers: the maximum and one slot",
        ),
        pytest.param(
            [grant("init", ("a", 500, 10)), *[grant("app", ("a", 100, 30))] * 2],
            (2, 500, 60),
            id="the greater of init and app in each dimension",
        ),
        pytest.param(
            [
                grant("sidecar", ("a", 6000, 10)),
                grant("init", ("a", 12_000, 20)),
                grant("app", ("a", 3000, 5)),
            ],
            (2, 18_000, 30),
            id="an init container after a sidecar",
        ),
        pytest.param(
            [
                grant("init", ("a", 12_000, 20)),
                grant("sidecar", ("a", 6000, 10)),
                grant("app", ("a", 3000, 5)),
            ],
            (2, 12_000, 20),
            id="an init container before a sidecar",
        ),
        pytest.param(
            [
                grant("sidecar", ("a", 1000, 10)),
                grant("init", ("a", 5000, 0)),
                grant("sidecar", ("a", 2000, 10)),
                grant("init", ("a", 100, 50)),
                grant("app", ("a", 500, 0)),
            ],
            (3, 6000, 70),
            id="each init container with the sidecars before it",
        ),
        pytest.param(
            [grant("sidecar", ("b", 6000, 10)), grant("init", ("a", 12_000, 20))],
            (1, 12_000, 20),
            id="a sidecar on another card",
        ),
        pytest.param(
            [grant("app", ("a", 6000, 10)), grant("init", ("a", 12_000, 20))],
            (1, 12_000, 20),
            id="a grant from before sidecars were distinguished",
        ),
    ],
)
def test_init_containers_hold_a_card_together_with_the_sidecars_before_them(
    made: list[ContainerGrant], held: tuple[int, int, int]
) -> None:
    found = footprints(made)[0]

    assert found.uuid == min(share.uuid for each in made for share in each.shares)
    assert (found.slots, found.memory_mib, found.core_percent) == held


def test_cards_come_in_the_order_of_their_uuids() -> None:
    found = footprints([grant("app", ("b", 1, 1), ("a", 1, 1), ("c", 1, 1))])

    assert [footprint.uuid for footprint in found] == ["a", "b", "c"]


shares = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 9)), max_size=3
)
containers = st.lists(
    st.builds(lambda role, s: grant(role, *s), st.sampled_from(["init", "sidecar", "app"]), shares),
    max_size=5,
)


@given(containers)
def test_a_footprint_covers_every_container_that_runs_at_the_same_time(
    made: list[ContainerGrant],
) -> None:
    held = {footprint.uuid: footprint for footprint in footprints(made)}

    together = [share for c in made if c.role != "init" for share in c.shares]
    for uuid, footprint in held.items():
        assert footprint.memory_mib >= sum(s.memory_mib for s in together if s.uuid == uuid)
        for container in made:
            assert footprint.memory_mib >= max(
                (s.memory_mib for s in container.shares if s.uuid == uuid), default=0
            )
