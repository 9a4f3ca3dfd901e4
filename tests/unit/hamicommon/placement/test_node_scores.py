"""Scores of the nodes that fit, as arrays until somebody reads them."""

import numpy as np
from hamicommon.domain.ids import NodeName
from hamicommon.placement.engine import decide
from hamicommon.placement.node_scores import NodeScores
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.hamicommon.placement import clusters

A, B, C = map(NodeName, "abc")
names = st.text("abcdef", min_size=1, max_size=3).map(NodeName)
floats = st.floats(0, 30, width=32)


@given(st.dictionaries(names, floats), st.integers(0, 5))
def test_it_reads_as_the_mapping_it_stands_for(scores: dict[NodeName, float], count: int) -> None:
    made = NodeScores.of(scores)

    assert dict(made) == scores
    assert list(made) == list(scores)
    assert len(made) == len(scores)
    assert made.best(count) == list(scores.items())[::-1][:count]
    assert made.all_equal == (len(set(scores.values())) <= 1)


def test_rows_that_do_not_fit_are_not_in_it() -> None:
    made = NodeScores((A, B, C), np.array([2, 0]), np.array([1.0, 3.0], np.float32))

    assert dict(made) == {C: 1.0, A: 3.0}
    assert made.best(1) == [(A, 3.0)]


def test_a_decision_keeps_its_scores_when_nodes_go() -> None:
    view = clusters.view_of({"a": [clusters.card("GPU-a")], "b": [clusters.card("GPU-b")]})
    scores = decide(clusters.pod(clusters.cards(memory_mib=1)), view).scores

    view.remove_node(A)

    assert set(scores) == {A, B}
