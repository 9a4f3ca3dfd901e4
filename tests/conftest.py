"""Options and session fixtures that every test folder shares."""

import gc
import os
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import measured
from tests.control_plane import Assets, find_assets
from tests.docker_servers import docker_missing, docker_servers, images
from tests.scheduling import SideBySide, starts_late
from tests.servers import Databases, Servers, embedded_servers, migrate

SLOW_TIMEOUT_S = 3600
TESTS = Path(__file__).parent

# How long an example takes is the machine's load, not the code: hypothesis' 200 ms, and its check
# that examples are made fast enough, fail at random where others compute.
HYPOTHESIS_SETTINGS = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("hami", max_examples=40, **HYPOTHESIS_SETTINGS)
settings.register_profile("long", max_examples=1000, **HYPOTHESIS_SETTINGS)
settings.load_profile("hami")

# No test asks the Internet. A client that reads the machine's 140 authorities takes 30 ms for it.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("one_authority.pem"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add options: the data servers, the system of e2e tests, the number of random cases."""
    parser.addoption(
        "--servers",
        choices=("embedded", "docker"),
        default="embedded",
        help="PostgreSQL, Redis and NATS from wheels (default) or in containers (testcontainers)",
    )
    parser.addoption(
        "--image",
        action="append",
        default=[],
        metavar="SERVER=REFERENCE",
        help="with --servers=docker: the image of postgres, redis or nats; may be repeated",
    )
    parser.addoption(
        "--cluster",
        choices=("emulator", "real"),
        default="emulator",
        help="e2e: our API server (default) or the real one of $KUBEBUILDER_ASSETS",
    )
    parser.addoption(
        "--model-cases",
        type=int,
        default=300,
        help="random cases that go through the engine and the reference model (make test-model)",
    )
    parser.addoption(
        "--model-seed", type=int, default=0, help="the first case's seed; each has the next one"
    )

    parser.addoption(
        "--seed",
        action="append",
        default=[],
        metavar="SEED",
        help="tests/simulation: the history that this seed draws; may be repeated",
    )
    parser.addoption(
        "--review-cases",
        type=int,
        default=300,
        help="good and broken reviews that the webhook is asked (make test-reviews)",
    )
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="tests/unit/hamicommon/admission: rewrites the answers to HAMi's examples",
    )
    parser.addoption(
        "--slow", action="store_true", help="also the cases that are marked slow (long runs)"
    )

    parser.addoption("--rows", metavar="FILE", help="tests/faults: writes the collected rows there")
    parser.addoption(
        "--update-page",
        action="store_true",
        help="tests/faults: brings tests/faults/README.md up to date",
    )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from going through the cases, which stay until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark each case by its folder, such as `faults`."""
    folder = item.path.relative_to(TESTS).parts[0].partition("_")[0]
    if folder in ("integration", "native", "e2e", "faults"):
        item.add_marker(folder)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the cases, and deselect the slow ones unless they are asked for."""
    items.sort(key=lambda item: starts_late(item.nodeid))
    slow = [item for item in items if item.get_closest_marker("slow")]
    if config.getoption("--slow"):
        for item in slow:
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S), append=True)
        return
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach to each report the measurements of its case."""
    report = yield
    measured.attach(report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the cases' measurements, and the count of skipped cases by reason."""
    for line in measured.lines(terminalreporter):
        terminalreporter.write_line(f"measured: {line}")
    skipped = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.getreports("skipped")
        if isinstance(report.longrepr, tuple)
    )
    for reason, cases in skipped.most_common():
        terminalreporter.write_line(f"skipped: {cases} cases: {reason}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SideBySide:
    """Keep cases that share a system with one worker."""
    return SideBySide(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """A wrong `--image` ends the run before a test starts."""
    try:
        images(config.getoption("--image"))
    except ValueError as exc:
        raise pytest.UsageError(str(exc)) from None


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest) -> Iterator[Servers]:
    """The source of servers; each server starts when a test first asks for it."""
    if request.config.getoption("--servers") == "docker":
        why = docker_missing()
        if why:
            pytest.exit(f"--servers=docker: {why}", returncode=pytest.ExitCode.USAGE_ERROR)
        with docker_servers(images(request.config.getoption("--image"))) as containers:
            yield containers
        return
    with embedded_servers() as embedded:
        yield embedded


@pytest.fixture(scope="session")
def kubernetes_assets() -> Assets:
    """The binaries of a real control plane, for tests that need one."""
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    if not folder:
        pytest.skip("KUBEBUILDER_ASSETS names no folder with kube-apiserver and kube-scheduler")
    return find_assets(Path(folder))


@pytest.fixture(scope="session")
def databases(servers: Servers) -> Iterator[Databases]:
    """Make databases on the session's PostgreSQL (fsync off)."""
    made = Databases(servers.postgres())
    yield made
    made.close()


@pytest.fixture
def empty_postgres_dsn(databases: Databases) -> Iterator[str]:
    """A PostgreSQL database only for this test, without any table."""
    with databases.database() as dsn:
        yield dsn


@pytest.fixture
def postgres_dsn(databases: Databases) -> Iterator[str]:
    """A PostgreSQL database only for this test, with all migrations applied."""
    with databases.database("migrated", fill=migrate) as dsn:
        yield dsn


@pytest.fixture
def redis_url(servers: Servers) -> str:
    """A Redis of which every key belongs to this test."""
    return servers.redis()


@pytest.fixture
def nats_url(servers: Servers) -> Iterator[str]:
    """A NATS with JetStream of which every stream belongs to this test."""
    with servers.nats() as url:
        yield url
