"""`hami-webhook-certificate`: makes and renews the certificates of `k8s/`, once per call.

A CronJob runs it every day, `hami-bootstrap` at the installation. Secrets: `hami-ca` (the
authority), and those that servers serve with. The API server trusts a new authority before the
webhook serves a certificate of it, so no review fails in between. Webhook and scheduler take new
files over by themselves (`hamicommon.process.serving_certificate`); the stores are restarted, by an
annotation of their pods that names the certificate. With cert-manager, which renews the Secrets,
only that restart is left.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import sys
from datetime import UTC, datetime

from hamicommon import telemetry
from hamicommon.admission.registration import CONFIGURATION_PATH
from hamicommon.errors import HamiError, NotFound
from hamicommon.k8s.client import KubeApi, PatchType, open_kube_api
from hamicommon.k8s.types import Json
from hamicommon.settings import describe
from pydantic import ValidationError

from hami_webhook.certificate.plan import Issued, Pair, authority_of, issued, renewed, serial_of
from hami_webhook.settings import RenewalSettings

logger = logging.getLogger(__name__)

_CERTIFICATE, _KEY = "tls.crt", "tls.key"
_ISSUER = "ca.crt"
"""Key of the authority in leaves' Secrets, as cert-manager has it."""
_ANNOTATION = "hami.io/certificate"
"""Annotation of the stores' pods: serial number of the certificate that they began with."""


def main() -> None:
    """Console script `hami-webhook-certificate`."""
    try:
        settings = RenewalSettings()
    except ValidationError as exc:
        sys.exit(f"hami-webhook-certificate: {describe(exc, RenewalSettings)}")
    telemetry.setup("hami-webhook-certificate", settings.telemetry)
    try:
        asyncio.run(_main(settings))
    except HamiError as exc:
        sys.exit(f"hami-webhook-certificate: {exc}")
    finally:
        telemetry.shutdown()


async def _main(settings: RenewalSettings) -> None:
    async with open_kube_api(settings.kubernetes.kubeconfig) as api:
        await renew(api, settings, datetime.now(UTC))


async def renew(api: KubeApi, settings: RenewalSettings, now: datetime) -> None:
    """Brings authority, bundle and the certificates up to date, in this order.

    Raises: Unavailable, Forbidden, Conflict (another job was faster; the next run finds it done).
    """
    if settings.issue:
        await issue(api, settings, now)
    for store in settings.restarted:
        await _restart(api, settings.namespace, store, settings.secret_of(store))


async def make_authority(api: KubeApi, settings: RenewalSettings, now: datetime) -> None:
    """The authority alone, for others that issue by it, and the bundle that services trust.

    Raises: as `renew`.
    """
    held = await _read(api, settings.namespace, settings.authority_secret)
    if held is None:
        made = authority_of(None, now)
        await _write(api, settings.namespace, settings.authority_secret, made, None)
        await _publish(api, settings, made.certificate)


async def issue(api: KubeApi, settings: RenewalSettings, now: datetime) -> None:
    """Makes and renews authority and certificates, and lets the API server trust the webhook.

    Raises: as `renew`.
    """
    authority = await _read(api, settings.namespace, settings.authority_secret)
    serving = await _read(api, settings.namespace, settings.serving_secret)
    configuration = await _configuration(api)
    wanted = issued(
        None if authority is None else authority[0],
        None if serving is None else serving[0],
        _trusted(configuration),
        names=settings.names,
        now=now,
    )
    if authority is None or authority[0] != wanted.authority:
        await _write(
            api, settings.namespace, settings.authority_secret, wanted.authority, authority
        )
    await _trust(api, configuration, wanted)
    if serving is None or serving[0] != wanted.serving:
        await _write(
            api,
            settings.namespace,
            settings.serving_secret,
            wanted.serving,
            serving,
            issuer=wanted.authority.certificate,
        )
    await _publish(api, settings, wanted.bundle)
    for name in settings.servers:
        await _renew_leaf(api, settings, wanted.authority, name, now)


async def _renew_leaf(
    api: KubeApi,
    settings: RenewalSettings,
    authority: Pair,
    name: str,
    now: datetime,
) -> None:
    secret = settings.secret_of(name)
    held = await _read(api, settings.namespace, secret)
    pair = renewed(held[0] if held else None, authority, names=settings.names_of(name), now=now)
    if held is None or held[0] != pair:
        await _write(api, settings.namespace, secret, pair, held, issuer=authority.certificate)


async def _publish(api: KubeApi, settings: RenewalSettings, bundle: bytes) -> None:
    """The authorities that the services trust, former ones included.

    Other keys are the user's: authorities of stores of their own.
    """
    path = f"/api/v1/namespaces/{settings.namespace}/configmaps/{settings.authority_secret}"
    try:
        held = await api.get(path)
    except NotFound:
        collection, name = path.rsplit("/", 1)
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
        await api.create(collection, {**body, "data": {"ca.crt": bundle.decode()}})
        return
    data = held.get("data") or {}
    if data.get("ca.crt") != bundle.decode():
        await api.replace(path, {**held, "data": {**data, "ca.crt": bundle.decode()}})


async def _restart(api: KubeApi, namespace: str, store: str, secret: str) -> None:
    """Lets the store's pods be replaced when its certificate is another one than is noted."""
    path = f"/apis/apps/v1/namespaces/{namespace}/statefulsets/{store}"
    held = await _read(api, namespace, secret)
    try:
        found = await api.get(path)
    except NotFound:
        return  # a store of the user's own
    if held is None:
        return
    serial = serial_of(held[0])
    template = found["spec"]["template"]["metadata"].get("annotations") or {}
    if template.get(_ANNOTATION) == serial:
        return
    body = {"spec": {"template": {"metadata": {"annotations": {_ANNOTATION: serial}}}}}
    await api.patch(path, body, PatchType.MERGE)
    logger.info("restarted with its new certificate", extra={"statefulset": store})


async def _read(api: KubeApi, namespace: str, name: str) -> tuple[Pair, Json] | None:
    try:
        secret = await api.get(f"/api/v1/namespaces/{namespace}/secrets/{name}")
    except NotFound:
        return None
    data = secret.get("data") or {}
    held = {key: base64.b64decode(data.get(key, "")) for key in (_CERTIFICATE, _KEY)}
    return Pair(certificate=held[_CERTIFICATE], key=held[_KEY]), secret


async def _write(
    api: KubeApi,
    namespace: str,
    name: str,
    pair: Pair,
    known: tuple[Pair, Json] | None,
    *,
    issuer: bytes | None = None,
) -> None:
    """Creates the Secret, or replaces the very version that was read."""
    collection = f"/api/v1/namespaces/{namespace}/secrets"
    secret: Json = {"metadata": {"name": name}, "type": "kubernetes.io/tls"}
    if known is not None:
        secret = {key: value for key, value in known[1].items() if key != "data"}
    held = {_CERTIFICATE: pair.certificate, _KEY: pair.key}
    if issuer is not None:
        held[_ISSUER] = issuer
    secret["data"] = {key: base64.b64encode(value).decode() for key, value in held.items()}
    if known is None:
        await api.create(collection, {"apiVersion": "v1", "kind": "Secret", **secret})
    else:
        await api.replace(f"{collection}/{name}", secret)
    logger.info("certificate made", extra={"secret": f"{namespace}/{name}"})


async def _configuration(api: KubeApi) -> Json:
    try:
        return await api.get(CONFIGURATION_PATH)
    except NotFound:
        # The manifests are not applied yet; the next run finds them.
        logger.warning("no MutatingWebhookConfiguration yet", extra={"path": CONFIGURATION_PATH})
        return {}


def _trusted(configuration: Json) -> bytes:
    """Return what the API server trusts now, in any of the webhooks."""
    bundles = [
        base64.b64decode(hook.get("clientConfig", {}).get("caBundle") or "")
        for hook in configuration.get("webhooks", ())
    ]
    return b"".join(dict.fromkeys(bundle for bundle in bundles if bundle.strip()))


async def _trust(api: KubeApi, configuration: Json, wanted: Issued) -> None:
    bundle = base64.b64encode(wanted.bundle).decode()
    steps = [
        {"op": "add", "path": f"/webhooks/{number}/clientConfig/caBundle", "value": bundle}
        for number, hook in enumerate(configuration.get("webhooks", ()))
        if hook.get("clientConfig", {}).get("caBundle") != bundle
    ]
    if not steps:
        return
    # The positions hold for the version that was read, and for no other.
    version = configuration["metadata"]["resourceVersion"]
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
    await api.patch(CONFIGURATION_PATH, [test, *steps], PatchType.JSON)
    logger.info("the API server trusts the webhook", extra={"webhooks": len(steps)})


if __name__ == "__main__":
    main()
