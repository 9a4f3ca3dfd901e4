"""Which worker of `make test` gets a file."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.scheduling import OWN_SYSTEMS, STARTS_A_SYSTEM, scope_of, starts_late

ROOT = Path(__file__).parents[2]


def scope(file: str) -> str:
    return scope_of(f"{file}::test_it[a::b]")


def test_a_file_with_systems_of_its_own_waits_for_no_shared_system() -> None:
    for file in STARTS_A_SYSTEM:
        assert (ROOT / file).is_file(), f"{file}: moved?"
        assert scope(file) in (file, OWN_SYSTEMS)


def test_cases_of_whole_systems_come_before_all_others() -> None:
    assert not starts_late("tests/faults/test_secrets.py::test_it")
    assert starts_late("tests/contract/kubernetes/test_life.py::test_it")
    assert starts_late("tests/e2e_node/test_bursts.py::test_it")


def test_cases_of_one_running_system_stay_with_one_worker() -> None:
    assert scope("tests/e2e/test_kills.py") == scope("tests/e2e/hostile/test_bad_input.py")
    assert scope("tests/faults/test_secrets.py") != scope("tests/e2e/test_kills.py")
    assert scope("tests/unit/test_traps.py") != scope("tests/unit/test_waiting.py")


def test_no_such_file_uses_a_system_that_others_share() -> None:
    """Except `crowded`, which only files of this group use."""
    shared = {
        each.name
        for folder in ("tests/e2e", "tests/faults")
        for each in functions(f"{folder}/conftest.py")
        if any("fixture" in ast.unparse(made) for made in each.decorator_list)
    } - {"cluster_kind", "crowded"}
    assert {"system", "running_cluster"} <= shared
    for file in STARTS_A_SYSTEM:
        for case in functions(file):
            if case.name.startswith("test_"):
                assert not shared & {each.arg for each in case.args.args}, f"{file}: {case.name}"


def functions(file: str) -> list[ast.FunctionDef]:
    nodes = ast.walk(ast.parse((ROOT / file).read_text()))
    return [each for each in nodes if isinstance(each, ast.FunctionDef)]
