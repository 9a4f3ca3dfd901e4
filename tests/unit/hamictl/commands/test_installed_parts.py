"""Missing parts of an installation in a cluster, from the objects that it has."""

from __future__ import annotations

import pytest
from hamictl.commands.installed_parts import Installed, PartState, findings

from tests import installation_state as states
from tests.installation_state import APPS, CASES, JOBS, NAMESPACE, ORDER, PLACE, State


def installed(state: State) -> Installed:
    def under(path: str) -> list[dict[str, object]]:
        return [each for at, each in state.items() if at.startswith(path)]

    return Installed(
        namespace=NAMESPACE,
        present=True,
        registration=state.get(states.REGISTRATION),
        workloads={at.rpartition("/")[2]: each for at, each in state.items() if APPS in at},
        pods=under(f"{PLACE}/pods"),
        jobs=under(JOBS),
        refusals=states.refusals(state),
        services=frozenset(at.rpartition("/")[2] for at in state if f"{PLACE}/services" in at),
        trusted=f"{PLACE}/configmaps/hami-ca" in state,
    )


def test_where_everything_is_ready_each_part_is_well_in_the_order_of_their_needs() -> None:
    found = findings(installed(states.ready()))

    assert tuple(each.part for each in found) == ORDER
    assert {each.state for each in found} == {PartState.WELL}


@pytest.mark.parametrize("what", CASES)
def test_what_is_broken_is_one_line_with_what_to_do(what: str) -> None:
    breaks, part, detail, step = CASES[what]

    wrong = [e for e in findings(installed(states.broken(breaks))) if e.state is not PartState.WELL]

    assert [(each.part, each.state) for each in wrong] == [(part, PartState.MISSING)]
    assert detail in wrong[0].detail
    assert step in wrong[0].next_step


def test_several_broken_parts_come_in_the_order_in_which_to_repair_them() -> None:
    state = states.ready()
    for what in reversed(CASES):
        if what.startswith("no "):
            CASES[what][0](state)

    wrong = [each.part for each in findings(installed(state)) if each.state is PartState.MISSING]

    assert wrong == sorted(wrong, key=ORDER.index)
    assert len(wrong) == 8


def test_a_store_of_the_users_own_is_unknown_and_nothing_is_missing() -> None:
    state = states.ready()
    for path in (f"{APPS}/statefulsets/hami-redis", f"{PLACE}/services/hami-redis"):
        del state[path]

    found = {each.part: each.state for each in findings(installed(state))}

    assert found.pop("Redis") is PartState.UNKNOWN
    assert set(found.values()) == {PartState.WELL}


def test_who_may_read_nothing_learns_that_and_that_nothing_is_known() -> None:
    blind = Installed(
        namespace=NAMESPACE,
        present=True,
        registration={},
        workloads=None,
        pods=None,
        jobs=None,
        refusals={},
        services=None,
        trusted=None,
    )

    found = findings(blind)

    assert {each.state for each in found} == {PartState.UNKNOWN}
    assert tuple(each.part for each in found) == ORDER
