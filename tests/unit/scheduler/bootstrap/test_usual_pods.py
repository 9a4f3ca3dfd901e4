"""Usual pods that an administrator gives: read as they are meant, each mistake one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from hami_scheduler.placement.fragmentation_tables import read_usual_pods
from hamicommon.errors import InvalidRequest
from hamicommon.placement.cluster.arrivals import PodShape, UsualPods

GIVEN = """
- {part: 30, gpucores: 81, gpumem_percentage: 81, cpu: 4}
- {part: 10, gpumem_mib: 8192, cpu: 500m, use_types: [A100]}
- {part: 60, gpu: 8}
"""


def test_a_file_is_the_mix_and_arrivals_do_not_change_it(tmp_path: Path) -> None:
    path = tmp_path / "usual.yaml"
    path.write_text(GIVEN)
    mix = read_usual_pods(path)

    assert mix.parts.tolist() == pytest.approx([0.3, 0.1, 0.6])
    first, second, third = mix.shapes
    assert (first.request.core_percent, first.request.memory_percent, first.cpu_milli) == (
        81,
        81,
        4000,
    )
    assert (second.request.memory_mib, second.selection.use_types) == (8192, ("A100",))
    assert second.cpu_milli == 500
    assert (third.request.count, third.request.memory_percent) == (8, 100)

    usual = UsualPods()
    usual.give(mix)
    for _ in range(100):
        usual.add_arrival(PodShape(request=second.request))
    assert usual.mix is mix


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("- {part: 0}", "0.part: Input should be greater than 0"),
        ("- {part: 1, gpucore: 3}", "0.gpucore: Extra inputs are not permitted"),
        ("- {part: 1, gpucores: 101}", "0.gpucores: Input should be less than or equal to 100"),
        ("- {part: 1, cpu: lots}", "cpu: "),
        ("[]", "the file: "),
        ("{", "not YAML"),
        ("part: 1", "the file: "),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "usual.yaml"
    path.write_text(text)
    with pytest.raises(InvalidRequest) as raised:
        read_usual_pods(path)
    assert str(raised.value).startswith(f"usual_pods_file {path}: ")
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="not readable: No such file"):
        read_usual_pods(tmp_path / "none")
