"""`serve.py postgres|redis|nats PASSWORD`: one data server of docker-compose.yml, from its wheel.

Prepared as `hamictl up` does it, but listening to the other containers, behind a password.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from hamilocal.servers.data import nats, postgres, valkey
from hamilocal.servers.data.nats_config import agent_nats_user, service_nats_users
from hamilocal.supervisor.plan import ServerPlan

DATA = Path("/data")
EVERYWHERE = "0.0.0.0"
NODE = "node-0"


def postgres_plan(password: str) -> ServerPlan:
    """Port 5432, user and database `hami`."""
    plan = postgres.prepare(DATA, port=5432, password=password)
    rules = DATA / "data" / "pg_hba.conf"
    rule = "host all all all scram-sha-256\n"
    if rule not in rules.read_text():
        with rules.open("a") as file:
            file.write(rule)
    return plan


def nats_plan(password: str) -> ServerPlan:
    """Port 4222; each service may do what it does, as in a cluster."""
    users = [*service_nats_users(lambda _name: password), agent_nats_user(NODE, password)]
    plan = nats.prepare(DATA, port=4222, users=users)
    file = DATA / "nats.conf"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"host": EVERYWHERE}))
    return plan


def main() -> None:
    """Becomes the server."""
    match sys.argv[1:]:
        case ["postgres", password]:
            plan = postgres_plan(password)
        case ["nats", password]:
            plan = nats_plan(password)
        case ["redis", password]:
            plan = valkey.prepare(DATA, port=6379, password=password)
        case _:
            sys.exit("serve.py postgres|redis|nats PASSWORD")
    argv = [*plan.prefix, *(part.replace("127.0.0.1", EVERYWHERE) for part in plan.argv)]
    if plan.before_start is not None:
        plan.before_start()
    os.chdir(plan.cwd)
    os.execvpe(argv[0], argv, {**os.environ, **plan.env})


if __name__ == "__main__":
    main()
