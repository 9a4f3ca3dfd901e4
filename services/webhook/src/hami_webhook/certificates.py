"""Create and renew the certificates of `k8s/`, once per run of `hami-webhook-certificate`.

A CronJob runs it every day, `hami-bootstrap` at the installation. Secrets: `hami-ca` (the
authority), and those of the servers. Certificates that are valid for long enough stay, so it may
run any number of times. A new authority is trusted, by the API server and in the ConfigMap that
services read, before any server uses a certificate of it, and former ones as long as they are
valid: no review fails in between. Webhook and scheduler reload new files themselves
(`hamicommon.process.serving_certificate`); the stores are restarted, by an annotation of their pods
that names the certificate. With cert-manager, which renews the Secrets, only that restart is left.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from hamicommon import telemetry
from hamicommon.admission.registration import CONFIGURATION_PATH
from hamicommon.errors import HamiError, NotFound
from hamicommon.k8s.client import KubeApi, PatchType, open_kube_api
from hamicommon.k8s.types import Json
from hamicommon.settings import describe
from hamicommon.tls import authority_certificate, new_key, serving_certificate
from pydantic import ValidationError

from hami_webhook.settings import RenewalSettings

logger = logging.getLogger(__name__)

AUTHORITY_LIFE = timedelta(days=3650)
SERVING_LIFE = timedelta(days=90)
RENEW_AT_SHARE = 1 / 3
"""Fraction of a certificate's life at which it is renewed: leaves a daily job a month."""
_BACKDATED = timedelta(hours=1)
_MAX_TRUSTED = 3
"""Maximum number of trusted authorities: the present one, and former ones still in use."""
_CERTIFICATE, _KEY = "tls.crt", "tls.key"
_ISSUER = "ca.crt"
"""Key of the authority's certificate in Secrets, as with cert-manager."""
_ANNOTATION = "hami.io/certificate"
"""Annotation of the stores' pods with the serial number of their certificate."""


class Pair(NamedTuple):
    """Certificate with its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def main() -> None:
    """Run `hami-webhook-certificate`."""
    run_once("hami-webhook-certificate", renew)


def run_once(
    name: str, work: Callable[[KubeApi, RenewalSettings, datetime], Awaitable[None]]
) -> None:
    """Run `work` with the API server and the settings, or exit with the reason of a failure."""
    try:
        settings = RenewalSettings()
    except ValidationError as exc:
        sys.exit(f"{name}: {describe(exc, RenewalSettings)}")
    telemetry.setup(name, settings.telemetry)

    async def run() -> None:
        async with open_kube_api(settings.kubernetes.kubeconfig) as api:
            await work(api, settings, datetime.now(UTC))

    try:
        asyncio.run(run())
    except HamiError as exc:
        sys.exit(f"{name}: {exc}")
    finally:
        telemetry.shutdown()


async def renew(api: KubeApi, settings: RenewalSettings, now: datetime) -> None:
    """Renew the authority, the bundle and the certificates, in this order.

    Raises: Unavailable, Forbidden, Conflict (another job was faster; the next run finds it done).
    """
    if settings.issue:
        await issue(api, settings, now)
    for store in settings.restarted:
        await _restart(api, settings.namespace, store, settings.secret_of(store))


async def make_authority(api: KubeApi, settings: RenewalSettings, now: datetime) -> None:
    """Create only the authority (for others that issue by it) and the bundle of trusted ones.

    Raises: as `renew`.
    """
    if await _read(api, settings.namespace, settings.authority_secret) is None:
        made = _new_authority(now)
        await _write(api, settings.namespace, settings.authority_secret, made, None)
        await _publish(api, settings, _pem([made.certificate]))


async def issue(api: KubeApi, settings: RenewalSettings, now: datetime) -> None:
    """Create and renew authority and certificates, and make the API server trust the webhook.

    Raises: as `renew`.
    """
    held = await _read(api, settings.namespace, settings.authority_secret)
    authority = _good(held, now)
    if authority is None:
        authority = _new_authority(now)
        await _write(api, settings.namespace, settings.authority_secret, authority, held)
    configuration = await _configuration(api)
    trusted = _trusted_certificates(configuration, authority.certificate, now)
    await _trust(api, configuration, _pem(trusted))
    await _publish(api, settings, _pem(trusted))
    secrets = {settings.service: settings.serving_secret}
    secrets |= {name: settings.secret_of(name) for name in settings.servers}
    for name, secret in secrets.items():
        names = settings.names_of(name)
        held = await _read(api, settings.namespace, secret)
        leaf = _good(held, now)
        if leaf is None or not _serves(leaf.certificate, trusted, names):
            made = _new_leaf(authority, names, now)
            await _write(api, settings.namespace, secret, made, held, issuer=authority.certificate)


def _good(secret: Json | None, now: datetime) -> Pair | None:
    """Return the Secret's pair if it is readable and needs no renewal."""
    data = (secret or {}).get("data") or {}
    try:
        certificate = x509.load_pem_x509_certificate(base64.b64decode(data.get(_CERTIFICATE, "")))
        key = load_pem_private_key(base64.b64decode(data.get(_KEY, "")), password=None)
    except (ValueError, TypeError):
        return None
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    if (
        key.public_key() != certificate.public_key()
        or certificate.not_valid_after_utc - now <= life * RENEW_AT_SHARE
    ):
        return None
    return Pair(certificate, key)  # type: ignore[arg-type]  # EC or RSA


def _serves(
    leaf: x509.Certificate, trusted: Sequence[x509.Certificate], names: Sequence[str]
) -> bool:
    """Return whether a trusted authority issued the certificate for all these names."""

    def is_issued_by(authority: x509.Certificate) -> bool:
        try:
            leaf.verify_directly_issued_by(authority)
        except (InvalidSignature, ValueError, TypeError):
            return False
        return True

    try:
        held = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    return any(map(is_issued_by, trusted)) and set(names) <= set(
        held.get_values_for_type(x509.DNSName)
    )


def _trusted_certificates(
    configuration: Json, authority: x509.Certificate, now: datetime
) -> list[x509.Certificate]:
    """Return the authority, and valid ones that the API server trusts for any webhook."""
    bundles = [
        base64.b64decode(hook.get("clientConfig", {}).get("caBundle") or "")
        for hook in configuration.get("webhooks", ())
    ]
    text = b"".join(dict.fromkeys(bundle for bundle in bundles if bundle.strip()))
    try:
        former = x509.load_pem_x509_certificates(text) if text else []
    except ValueError:
        former = []
    live = [each for each in former if each != authority and each.not_valid_after_utc > now]
    return [authority, *live][:_MAX_TRUSTED]


def _new_authority(now: datetime) -> Pair:
    key = new_key()
    certificate = authority_certificate(
        "hami authority", key, not_before=now - _BACKDATED, not_after=now + AUTHORITY_LIFE
    )
    return Pair(certificate, key)


def _new_leaf(authority: Pair, names: Sequence[str], now: datetime) -> Pair:
    key = new_key()
    certificate = serving_certificate(
        names,
        key.public_key(),
        issuer=authority.certificate,
        issuer_key=authority.key,
        not_before=now - _BACKDATED,
        not_after=now + SERVING_LIFE,
    )
    return Pair(certificate, key)


def _pem(certificates: Sequence[x509.Certificate]) -> bytes:
    return b"".join(each.public_bytes(Encoding.PEM) for each in certificates)


async def _publish(api: KubeApi, settings: RenewalSettings, bundle: bytes) -> None:
    """Publish the authorities that services trust, former ones included.

    Other keys are the user's: authorities of stores of their own.
    """
    path = f"/api/v1/namespaces/{settings.namespace}/configmaps/{settings.authority_secret}"
    try:
        held = await api.get(path)
    except NotFound:
        collection, name = path.rsplit("/", 1)
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
        await api.create(collection, {**body, "data": {_ISSUER: bundle.decode()}})
        return
    data = held.get("data") or {}
    if data.get(_ISSUER) != bundle.decode():
        await api.replace(path, {**held, "data": {**data, _ISSUER: bundle.decode()}})


async def _restart(api: KubeApi, namespace: str, store: str, secret: str) -> None:
    """Restart the store's pods if its certificate is not the noted one."""
    path = f"/apis/apps/v1/namespaces/{namespace}/statefulsets/{store}"
    held = await _read(api, namespace, secret)
    try:
        found = await api.get(path)
    except NotFound:
        return  # a store of the user's own
    if held is None:
        return
    certificate = x509.load_pem_x509_certificate(base64.b64decode(held["data"][_CERTIFICATE]))
    serial = f"{certificate.serial_number:x}"
    template = found["spec"]["template"]["metadata"].get("annotations") or {}
    if template.get(_ANNOTATION) == serial:
        return
    body = {"spec": {"template": {"metadata": {"annotations": {_ANNOTATION: serial}}}}}
    await api.patch(path, body, PatchType.MERGE)
    logger.info("Restarted with the new certificate", extra={"statefulset": store})


async def _read(api: KubeApi, namespace: str, name: str) -> Json | None:
    try:
        return await api.get(f"/api/v1/namespaces/{namespace}/secrets/{name}")
    except NotFound:
        return None


async def _write(
    api: KubeApi,
    namespace: str,
    name: str,
    pair: Pair,
    known: Json | None,
    *,
    issuer: x509.Certificate | None = None,
) -> None:
    """Create the Secret, or replace exactly the version that was read."""
    collection = f"/api/v1/namespaces/{namespace}/secrets"
    key = pair.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    held = {_CERTIFICATE: _pem([pair.certificate]), _KEY: key}
    if issuer is not None:
        held[_ISSUER] = _pem([issuer])
    data = {key: base64.b64encode(value).decode() for key, value in held.items()}
    if known is None:
        body = {"metadata": {"name": name}, "type": "kubernetes.io/tls", "data": data}
        await api.create(collection, {"apiVersion": "v1", "kind": "Secret", **body})
    else:
        await api.replace(f"{collection}/{name}", {**known, "data": data})
    logger.info("Created a certificate", extra={"secret": f"{namespace}/{name}"})


async def _configuration(api: KubeApi) -> Json:
    try:
        return await api.get(CONFIGURATION_PATH)
    except NotFound:
        # The manifests are not applied yet; the next run finds them.
        logger.warning(
            "Waiting for the MutatingWebhookConfiguration", extra={"path": CONFIGURATION_PATH}
        )
        return {}


async def _trust(api: KubeApi, configuration: Json, bundle: bytes) -> None:
    encoded = base64.b64encode(bundle).decode()
    steps = [
        {"op": "add", "path": f"/webhooks/{number}/clientConfig/caBundle", "value": encoded}
        for number, hook in enumerate(configuration.get("webhooks", ()))
        if hook.get("clientConfig", {}).get("caBundle") != encoded
    ]
    if not steps:
        return
    # The positions hold for the version that was read, and for no other.
    version = configuration["metadata"]["resourceVersion"]
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
    await api.patch(CONFIGURATION_PATH, [test, *steps], PatchType.JSON)
    logger.info("Registered the webhook with the API server", extra={"webhooks": len(steps)})


if __name__ == "__main__":
    main()
