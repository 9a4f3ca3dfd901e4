"""`hami-bootstrap`: makes every Secret that the manifests of `k8s/` name, once per call.

A Job runs it with each version that is installed; until it has, the other pods wait for their
Secrets. Authority and certificates are made, and the webhook trusted, by `certificate.renew`. What
is there already stays. Where the API server is too old for these manifests, the webhook stays
untrusted, and so without effect.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import sys
from datetime import UTC, datetime

from hamicommon import telemetry
from hamicommon.admission.registration import CONFIGURATION_PATH
from hamicommon.errors import Conflict, HamiError, InvalidRequest, NotFound
from hamicommon.k8s.client import KubeApi, open_kube_api
from hamicommon.k8s.types import Json
from hamicommon.settings import describe
from pydantic import ValidationError

from hami_webhook.certificate.renew import issue, make_authority
from hami_webhook.credentials.plan import LOGIN_KEY, NAMES, Data, login_issuer, missing
from hami_webhook.settings import RenewalSettings

logger = logging.getLogger(__name__)

ISSUER_CONFIG_MAP = "hami-nats-login"
OLDEST_MINOR = 20
"""Oldest minor version of Kubernetes 1; the manifests' oldest overlay is for it."""
MATCH_CONDITIONS_MINOR = 28
"""From which on a webhook can leave other pods alone by itself (`matchConditions`, beta)."""
_TRIES = 40
"""More than there are objects: each Conflict is one that another run has made."""
_OVERLAYS = ((23, "old-cluster"), (25, "v1.23"), (MATCH_CONDITIONS_MINOR, "v1.25"))
"""Overlay for clusters below that minor version."""


def main() -> None:
    """Console script `hami-bootstrap`."""
    try:
        settings = RenewalSettings()
    except ValidationError as exc:
        sys.exit(f"hami-bootstrap: {describe(exc, RenewalSettings)}")
    telemetry.setup("hami-bootstrap", settings.telemetry)
    try:
        asyncio.run(_main(settings))
    except HamiError as exc:
        sys.exit(f"hami-bootstrap: {exc}")
    finally:
        telemetry.shutdown()


async def _main(settings: RenewalSettings) -> None:
    async with open_kube_api(settings.kubernetes.kubeconfig) as api:
        await create(api, settings, datetime.now(UTC))


async def create(api: KubeApi, settings: RenewalSettings, now: datetime) -> None:
    """Makes what is missing, in an order in which a killed run is finished by the next.

    Raises: InvalidRequest (a cluster that is too old, or got manifests for a newer one; a key that
    can't be read), Unavailable, Forbidden, Conflict (another run was faster every time).
    """
    check_version(await api.get("/version"), await _webhook_policies(api))
    for left in reversed(range(_TRIES)):
        try:
            await _make(api, settings, now)
        except Conflict:
            if not left:
                raise
        else:
            return


async def _make(api: KubeApi, settings: RenewalSettings, now: datetime) -> None:
    secrets = f"/api/v1/namespaces/{settings.namespace}/secrets"
    held = {name: data for name in NAMES if (data := await _data(api, f"{secrets}/{name}"))}
    for secret in missing(held, settings.namespace):
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret.name}}
        encoded = {key: base64.b64encode(value).decode() for key, value in secret.data.items()}
        await api.create(secrets, {**body, "type": "Opaque", "data": encoded})
        logger.info("secret made", extra={"secret": f"{settings.namespace}/{secret.name}"})
        held[secret.name] = secret.data
    await _name_issuer(api, settings.namespace, login_issuer(held[LOGIN_KEY]))
    if settings.issue:
        await issue(api, settings, now)
    else:
        await make_authority(api, settings, now)


async def _name_issuer(api: KubeApi, namespace: str, issuer: str) -> None:
    """The ConfigMap from which the bus knows the key behind node-agents' logins."""
    collection = f"/api/v1/namespaces/{namespace}/configmaps"
    try:
        await api.get(f"{collection}/{ISSUER_CONFIG_MAP}")
    except NotFound:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": ISSUER_CONFIG_MAP}}
        await api.create(collection, {**body, "data": {"issuer": issuer}})


async def _data(api: KubeApi, path: str) -> Data | None:
    try:
        found = await api.get(path)
    except NotFound:
        return None
    return {key: base64.b64decode(text) for key, text in (found.get("data") or {}).items()}


async def _webhook_policies(api: KubeApi) -> list[str]:
    """The failurePolicy of each of our webhooks that is registered."""
    try:
        found = await api.get(CONFIGURATION_PATH)
    except NotFound:
        return []
    return [hook.get("failurePolicy", "Fail") for hook in found.get("webhooks", ())]


def check_version(version: Json, failure_policies: list[str]) -> None:
    """Whether this API server can take the manifests that were applied.

    An older one drops what it does not know in silence, and a webhook without `matchConditions`
    that fails closed would refuse every pod of the cluster whenever it is away.

    Raises: InvalidRequest with the manifests to apply instead.
    """
    found = re.match(r"\d+", str(version.get("minor", "")))
    if str(version.get("major")) != "1" or found is None:
        raise InvalidRequest("the API server does not report its version as 1.x")
    minor = int(found[0])
    if minor < OLDEST_MINOR:
        raise InvalidRequest(
            f"Kubernetes 1.{minor} is not supported; 1.{OLDEST_MINOR} is the oldest that is"
        )
    if minor < MATCH_CONDITIONS_MINOR and "Fail" in failure_policies:
        overlay = next(name for below, name in _OVERLAYS if minor < below)
        raise InvalidRequest(
            f"Kubernetes 1.{minor} has no matchConditions, so the webhook of these manifests would "
            f"refuse every pod whenever it is away: apply k8s/overlays/{overlay} instead"
        )


if __name__ == "__main__":
    main()
