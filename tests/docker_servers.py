"""The same servers in containers, for `--servers=docker`: what the images of a deployment run.

Testcontainers finds the daemon as the docker command does (`DOCKER_HOST`, the current context);
its own settings hold too, such as `TESTCONTAINERS_HUB_IMAGE_NAME_PREFIX` for a mirror and
`TESTCONTAINERS_RYUK_DISABLED` where its reaper's image cannot be had.
"""

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from hamilocal.servers.data.postgres import MAX_CONNECTIONS

from tests.servers import delete_streams, flush

# The major versions of the wheels that the embedded servers come from.
IMAGES: Mapping[str, str] = {"postgres": "postgres:18", "redis": "redis:8", "nats": "nats:2"}
_NATS_PORT = 4222
# As the embedded server of the tests: room for its pools, and no data outlives the container.
_POSTGRES = ["postgres", "-c", f"max_connections={MAX_CONNECTIONS}", "-c", "fsync=off"]
_DOCKER_TIMEOUT_S = 10.0


def docker_missing() -> str | None:
    """Why containers cannot be used here, or None if they can."""
    try:
        answer = subprocess.run(
            ["docker", "info", "--format", "{{.ServerVersion}}"],
            capture_output=True,
            text=True,
            timeout=_DOCKER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return f"docker does not answer: {exc}"
    # Some versions exit with 0 and an empty version when there is no daemon.
    if answer.returncode != 0 or not answer.stdout.strip():
        return answer.stderr.strip().splitlines()[-1] if answer.stderr.strip() else "no daemon"
    return None


def images(choices: Sequence[str]) -> dict[str, str]:
    """`IMAGES` with the `SERVER=REFERENCE` of the command line laid over it.

    Raises:
        ValueError: a choice of another form, or of a server that is not there.
    """
    chosen = dict(IMAGES)
    for choice in choices:
        server, equals, reference = choice.partition("=")
        if server not in IMAGES or not equals or not reference:
            raise ValueError(
                f"--image {choice}: expected SERVER=REFERENCE, SERVER one of {', '.join(IMAGES)}"
            )
        chosen[server] = reference
    return chosen


class DockerServers:
    """One container per server and session; Redis is flushed and NATS emptied for each test."""

    def __init__(self, stack: ExitStack, references: Mapping[str, str]) -> None:
        self._stack = stack
        self._images = references
        self._urls: dict[str, str] = {}

    def postgres(self) -> str:
        return self._url("postgres", self._start_postgres)

    def redis(self) -> str:
        url = self._url("redis", self._start_redis)
        flush(url)
        return url

    @contextmanager
    def nats(self) -> Iterator[str]:
        url = self._url("nats", self._start_nats)
        delete_streams(url)
        yield url

    def _url(self, server: str, start: Callable[[str], str]) -> str:
        if server not in self._urls:
            self._urls[server] = start(self._images[server])
        return self._urls[server]

    def _start_postgres(self, image: str) -> str:
        from testcontainers.community.postgres import PostgresContainer

        container = PostgresContainer(
            image, username="hami", password="hami", dbname="hami", driver=None
        ).with_command(_POSTGRES)
        return str(self._stack.enter_context(container).get_connection_url())

    def _start_redis(self, image: str) -> str:
        from testcontainers.community.redis import RedisContainer

        container = self._stack.enter_context(RedisContainer(image))
        return f"redis://{container.get_container_host_ip()}:{container.get_exposed_port(6379)}/0"

    def _start_nats(self, image: str) -> str:
        from testcontainers.core.container import DockerContainer
        from testcontainers.core.wait_strategies import LogMessageWaitStrategy

        # The NATS module of testcontainers warns, at its import, that its own way of waiting ends.
        container = (
            DockerContainer(image)
            .with_exposed_ports(_NATS_PORT)
            .with_command("-js")
            .waiting_for(LogMessageWaitStrategy("Server is ready"))
        )
        started = self._stack.enter_context(container)
        host, port = started.get_container_host_ip(), started.get_exposed_port(_NATS_PORT)
        return f"nats://{host}:{port}"


@contextmanager
def docker_servers(references: Mapping[str, str]) -> Iterator[DockerServers]:
    """Containers of these images; they end when the session closes."""
    with ExitStack() as stack:
        yield DockerServers(stack, references)
