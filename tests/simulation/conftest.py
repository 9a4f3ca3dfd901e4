"""The seeds of the histories that `make test` plays."""

import pytest

FEW = tuple(str(number) for number in range(6))
"""The seeds of `make test`: some seconds."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`--seed` plays those histories instead of the few."""
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", metafunc.config.getoption("--seed") or FEW)
