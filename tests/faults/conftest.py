"""One system whose services read their faults from a file that the cases write.

`--cluster=real` puts it on a real kube-apiserver and kube-scheduler; the cases that break those
two are left out then.
"""

import json
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.conftest import cluster_kind, end_shared, running_system, shared
from tests.e2e.system import System
from tests.faults import rows
from tests.faults.clocks import build, own_clocks
from tests.faults.stage import MEASURED, Faulty, Stage

__all__ = ["cluster_kind", "shared"]

ROWS = pytest.StashKey[list[rows.Row]]()
"""Rows of all collected cases, before any is left out."""
EVERY = pytest.StashKey[list[rows.Row]]()
"""Rows of all existing cases."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect, not skip, the cases that need the emulated control plane if it is a real one."""
    config.stash[ROWS] = _rows(items)
    if config.getoption("--cluster") != "real":
        return
    left = [item for item in items if item.get_closest_marker("emulator_only")]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Write the rows of the collected cases, if an option asks for it."""
    file = session.config.getoption("--rows")
    if file is not None:
        Path(file).write_text(rows.to_json(session.config.stash[ROWS]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, None, None]:
    """Bring the page up to date, if asked to, and end the shared system with the last case.

    A run that breaks off has done that much of the page.
    """
    if item.config.getoption("--update-page") and item.get_closest_marker("row") is not None:
        kind = str(item.config.getoption("--cluster"))
        new = {name: {kind: round(seconds, 1)} for name, seconds in MEASURED.items()}
        stash = item.config.stash
        every = stash[EVERY] if EVERY in stash else stash.setdefault(EVERY, rows.collect_rows())
        rows.PAGE.write_text(rows.with_rows(rows.PAGE.read_text(), every))
        figures = rows.with_figures(every, rows.figures(), new)
        rows.FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
    yield
    if nextitem is None or not nextitem.path.is_relative_to(Path(__file__).parent):
        end_shared(item.config)


def _rows(collected: list[pytest.Item]) -> list[rows.Row]:
    items = [item for item in collected if item.get_closest_marker("row") is not None]
    found = map(rows.row_of, items)
    return sorted(found, key=_order)


def _order(row: rows.Row) -> tuple[str, int, str]:
    """By the first of its points, `FAULT-8` before `FAULT-10`."""
    kind, _, number = row.point.split()[0].rpartition("-")
    return kind, int(number), row.name


@pytest.fixture(scope="session")
def faulty_cluster(cluster_kind: str, shared: ExitStack) -> Faulty:
    """Two nodes with four cards each; Postgres is durable there."""
    folder = Path(shared.enter_context(tempfile.TemporaryDirectory(prefix="hami-faults-")))
    # PostgreSQL runs as another user here if we are root.
    folder.chmod(0o755)
    file = folder / "faults"
    file.touch()
    clocks = own_clocks(folder, build(folder))
    environment = {
        "HAMI_FAILPOINTS_FILE": str(file),
        # Off by default; here it is one more write that may fail.
        "HAMI_SCHEDULER_LABEL": "true",
        **clocks.environment,
    }
    # Cases kill the scheduler more often than a sound one ends.
    # The way of the node lock, which has more points at which a process may die.
    flags = ("--nodes", "2", "--most-ends", "1000", "--binding", "lock")
    system = shared.enter_context(running_system(cluster_kind, *flags, environment=environment))
    assert system.sql("SHOW fsync") == "on"
    return Faulty(system=system, file=file, real=cluster_kind == "real", clocks=clocks)


@pytest.fixture
def faulty(faulty_cluster: Faulty, request: pytest.FixtureRequest) -> Iterator[Faulty]:
    """The session's system without faults before and after; its pods are gone then."""
    faulty_cluster.plan()
    yield replace(faulty_cluster, row=rows.row_of(request.node))
    faulty_cluster.plan()
    faulty_cluster.clocks.all_right()
    system = faulty_cluster.system
    system.check_invariants()
    system.delete_all()
    system.check_invariants()


@pytest.fixture
def system(faulty: Faulty) -> System:
    """The session's system."""
    return faulty.system


@pytest.fixture
def stage(faulty: Faulty) -> Stage:
    """The pods of the case."""
    return Stage(faulty)
