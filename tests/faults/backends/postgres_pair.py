"""Two Postgres servers: every commit waits for the standby, which takes over when it is promoted.

CloudNativePG, Patroni and others run them like this, except for the watchdog: the case itself
decides when the primary is dead. Services get both addresses and follow the one that takes writes.
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hamilocal.servers.binaries import postgres_home
from hamilocal.servers.data import postgres
from hamilocal.supervisor.ports import LOOPBACK, free_port

from tests.processes import ServerProcess, running
from tests.servers import psql
from tests.waiting import PATIENCE_S, wait

_NAME = "standby"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresPair:
    """A primary with its synchronous standby."""

    primary: ServerProcess
    standby: ServerProcess

    @property
    def dsn(self) -> str:
        """URL of the server that takes writes."""
        places = f"{LOOPBACK}:{self.primary.plan.port},{LOOPBACK}:{self.standby.plan.port}"
        user, database = postgres.SUPERUSER, postgres.DATABASE
        return f"postgresql://{user}@{places}/{database}?target_session_attrs=read-write"

    def fail_over(self) -> float:
        """Kill the primary and promote the standby; return the seconds until it takes writes."""
        began_s = time.monotonic()
        self.primary.kill()
        assert psql(self.standby.value.url, "SELECT pg_promote(true, 60)") == "t"
        return time.monotonic() - began_s


@contextmanager
def postgres_pair(folder: Path) -> Iterator[PostgresPair]:
    """Both run inside the block; no commit is acknowledged before the standby has it on disk."""
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    port = free_port()
    with running(postgres.prepare(folder / "primary"), die_with_parent=True) as primary:
        _copy(primary, folder / "standby" / "data")
        plan = postgres.prepare(folder / "standby", port=port)
        with running(plan, die_with_parent=True) as standby:
            # Not in the copy: once promoted, it waits for no standby.
            for statement in (
                f"ALTER SYSTEM SET synchronous_standby_names = '{_NAME}'",
                "SELECT pg_reload_conf()",
            ):
                psql(primary.value.url, statement)
            waits = "SELECT sync_state FROM pg_stat_replication"
            wait(lambda: psql(primary.value.url, waits) == "sync", "commits wait for the standby")
            yield PostgresPair(primary=primary, standby=standby)


def _copy(primary: ServerProcess, data: Path) -> None:
    data.parent.mkdir(parents=True)
    data.parent.chmod(0o755)
    source = (
        f"host={LOOPBACK} port={primary.plan.port} user={postgres.SUPERUSER} "
        f"application_name={_NAME}"
    )
    subprocess.run(
        [
            *(postgres_home() / "bin" / "pg_basebackup", "-D", data, "-d", source),
            *("-R", "-X", "stream", "--checkpoint=fast", "--no-sync"),
        ],
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )
