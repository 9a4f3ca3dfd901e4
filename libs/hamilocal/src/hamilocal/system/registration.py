"""Registers our webhook with the API server of a local system."""

from __future__ import annotations

import re

from hamicommon.admission.registration import registration_of, webhook_configuration
from hamicommon.errors import Conflict
from hamicommon.k8s.client import KubeApi, open_kube_api
from hamicommon.k8s.types import Json

from hamilocal.system.services import Context

_COLLECTION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
# matchConditions are on by default from this version on.
_MATCH_CONDITIONS_SINCE = (1, 28)


def knows_match_conditions(version: Json) -> bool:
    """From the answer of GET /version; a vendor's "27+" counts as 27."""
    minor = re.match(r"\d+", version.get("minor", "0"))
    return (int(version.get("major", 0)), int(minor.group()) if minor else 0) >= (
        _MATCH_CONDITIONS_SINCE
    )


async def register_webhook(context: Context) -> None:
    """Creates the MutatingWebhookConfiguration, or brings the existing one up to date."""
    async with open_kube_api(context.kubeconfig) as api:
        vendors = context.options.vendors()
        modern = knows_match_conditions(await api.get("/version"))
        body = webhook_configuration(
            registration_of(
                vendors,
                target=context.url("webhook", "https") + "/webhook",
                ca_bundle_pem=context.credentials.ca.read_bytes(),
                failure_policy="Fail" if modern else "Ignore",
                match_conditions=modern,
            )
        )
        await _create_or_replace(api, body)


async def _create_or_replace(api: KubeApi, body: Json) -> None:
    try:
        await api.create(_COLLECTION, body)
    except Conflict:
        path = f"{_COLLECTION}/{body['metadata']['name']}"
        existing = await api.get(path)
        body["metadata"]["resourceVersion"] = existing["metadata"]["resourceVersion"]
        await api.replace(path, body)
