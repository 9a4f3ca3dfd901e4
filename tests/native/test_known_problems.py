"""Check that known-problems.md names tests that exist."""

import re

from tests.native.machine import ROOT

ROW = re.compile(r"^\| (\d+) \| .* \| (.*) \|$", re.M)
NAMED = re.compile(r"`(\w+/test_\w+\.py)::(test_\w+)`")


def test_every_known_problem_has_a_test_that_exists() -> None:
    rows = ROW.findall((ROOT / "tests/native/known-problems.md").read_text())
    assert [int(number) for number, _ in rows] == list(range(1, 26))
    for number, shown in rows:
        named = NAMED.findall(shown)
        assert named or number == "21", number  # 21 is a price: a benchmark
        for file, name in named:
            assert f"def {name}(" in (ROOT / "tests/native" / file).read_text(), (file, name)
