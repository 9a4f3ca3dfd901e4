"""Run `python -m hamicommon.ledger MIGRATIONS`, which migrates the ledger's schema.

The migrations around a roll-out, for the Jobs of `k8s/`.

The images of the services have no hamictl; this does `hamictl db upgrade --before-rollout`, from
HAMI_POSTGRES_DSN, as soon as that server is up. With `--after-rollout-of=DEPLOYMENT,...
--pod=NAMESPACE/NAME` it waits until those Deployments are of the version of that pod, its own, and
applies the rest.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from pydantic import ValidationError

from hamicommon.errors import HamiError, InvalidRequest
from hamicommon.k8s.client import open_kube_api
from hamicommon.ledger.connection import wait_until_up
from hamicommon.ledger.migrations import upgrade
from hamicommon.ledger.migrations.inspection import revisions_of, revisions_over
from hamicommon.ledger.migrations.rollout import until_over
from hamicommon.ledger.migrations.session import SchemaSession
from hamicommon.settings import KubernetesSettings, PostgresSettings, describe

logger = logging.getLogger("hamicommon.ledger")

SERVER_STARTS_S = 600.0
"""Maximum wait for Postgres: a new one pulls its image and waits for its volume."""


def main(arguments: list[str]) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m hamicommon.ledger")
    parser.add_argument("migrations", type=Path)
    parser.add_argument("--after-rollout-of", default="")
    parser.add_argument("--pod", default="")
    asked = parser.parse_args(arguments)
    after = [name for name in asked.after_rollout_of.split(",") if name]
    try:
        settings = PostgresSettings()  # type: ignore[call-arg]  # required fields come from variables
        asyncio.run(wait_until_up(settings, longest_s=SERVER_STARTS_S))
        current = revisions_of(settings)
        if after and upgrade.pending(asked.migrations, current):
            asyncio.run(_wait(after, asked.pod))
        target = upgrade.HEADS if after else upgrade.before_rollout(asked.migrations, current)
        with SchemaSession(settings) as session:
            upgrade.upgrade_over(session, asked.migrations, target)
            left = upgrade.pending(asked.migrations, revisions_over(session))
    except ValidationError as exc:
        logger.error("%s", describe(exc, PostgresSettings))
        return 1
    except HamiError as exc:
        logger.error("%s", exc)
        return 1
    logger.info(
        "The schema is ready; migrations to run after the rollout: %s", ", ".join(left) or "nothing"
    )
    return 0


async def _wait(deployments: list[str], own: str) -> None:
    namespace, _, pod = own.partition("/")
    if not namespace or not pod:
        raise InvalidRequest(f"--pod={own}: expected NAMESPACE/NAME of the pod that this runs in")
    async with open_kube_api(KubernetesSettings().kubeconfig) as api:
        await until_over(api, namespace, deployments, pod)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    sys.exit(main(sys.argv[1:]))
