"""The same servers in containers, for `--servers=docker`: what the images of a deployment run."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.servers import delete_streams, flush

POSTGRES_IMAGE = "postgres:18"
REDIS_IMAGE = "redis:8"
NATS_IMAGE = "nats:2"
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


class DockerServers:
    """One container per server and session; Redis is flushed and NATS emptied for each test."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._urls: dict[str, str] = {}

    def postgres(self) -> str:
        from testcontainers.community.postgres import PostgresContainer

        return self._url(
            "postgres",
            lambda: PostgresContainer(
                POSTGRES_IMAGE, username="hami", password="hami", dbname="hami", driver=None
            ),
            lambda container: container.get_connection_url(),
        )

    def redis(self) -> str:
        from testcontainers.community.redis import RedisContainer

        url = self._url(
            "redis",
            lambda: RedisContainer(REDIS_IMAGE),
            lambda one: f"redis://{one.get_container_host_ip()}:{one.get_exposed_port(6379)}/0",
        )
        flush(url)
        return url

    @contextmanager
    def nats(self) -> Iterator[str]:
        from testcontainers.community.nats import NatsContainer

        url = self._url(
            "nats", lambda: NatsContainer(NATS_IMAGE, jetstream=True), lambda one: one.nats_uri()
        )
        delete_streams(url)
        yield url

    def _url(self, name: str, make: Any, url: Any) -> str:
        if name not in self._urls:
            self._urls[name] = url(self._stack.enter_context(make()))
        return self._urls[name]


@contextmanager
def docker_servers() -> Iterator[DockerServers]:
    """Containers end when the session closes."""
    with ExitStack() as stack:
        yield DockerServers(stack)
