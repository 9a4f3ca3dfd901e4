"""The self-signed certificate: made once, renewed in time, trusted before it is served."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from hami_webhook.certificates import AUTHORITY_LIFE, SERVING_LIFE, renew
from hami_webhook.settings import RenewalSettings
from hamicommon.admission.registration import (
    ServiceReference,
    WebhookRegistration,
    webhook_configuration,
)
from hamicommon.errors import NotFound
from hamicommon.k8s.client import KubeApi, open_kube_api

from tests.contract.kubernetes.servers import Cluster, start_emulation

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
NOW = datetime.now(UTC)


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with start_emulation(tmp_path_factory.mktemp("kubernetes")) as found:
        found.ok(
            found.client.post("/api/v1/namespaces", json={"metadata": {"name": "hami-system"}})
        )
        yield found


@pytest.fixture
def settings() -> RenewalSettings:
    return RenewalSettings()


async def register(api: KubeApi) -> None:
    registration = WebhookRegistration(target=ServiceReference(), resources=("nvidia.com/gpu",))
    await api.create(CONFIGURATIONS, webhook_configuration(registration))


async def bundles(api: KubeApi) -> list[list[x509.Certificate]]:
    found = await api.get(f"{CONFIGURATIONS}/hami-webhook")
    return [
        x509.load_pem_x509_certificates(base64.b64decode(hook["clientConfig"]["caBundle"]))
        for hook in found["webhooks"]
    ]


async def read_certificate(api: KubeApi, secret: str) -> x509.Certificate:
    found = await api.get(f"/api/v1/namespaces/hami-system/secrets/{secret}")
    return x509.load_pem_x509_certificate(base64.b64decode(found["data"]["tls.crt"]))


async def test_it_is_made_trusted_and_then_left_alone(
    cluster: Cluster, settings: RenewalSettings
) -> None:
    async with open_kube_api(cluster.kubeconfig) as api:
        await register(api)
        await renew(api, settings, NOW)
        authority, serving = (
            await read_certificate(api, "hami-ca"),
            await read_certificate(api, "hami-webhook-tls"),
        )

        serving.verify_directly_issued_by(authority)
        names = serving.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert "hami-webhook.hami-system.svc" in names.get_values_for_type(x509.DNSName)
        assert await bundles(api) == [[authority]] * 3

        await renew(api, settings, NOW + SERVING_LIFE / 2)
        assert (
            await read_certificate(api, "hami-webhook-tls"),
            await read_certificate(api, "hami-ca"),
        ) == (
            serving,
            authority,
        )


async def test_a_certificate_is_renewed_before_its_end_by_the_same_authority(
    cluster: Cluster, settings: RenewalSettings
) -> None:
    async with open_kube_api(cluster.kubeconfig) as api:
        await register(api)
        await renew(api, settings, NOW)
        before, authority = (
            await read_certificate(api, "hami-webhook-tls"),
            await read_certificate(api, "hami-ca"),
        )

        await renew(api, settings, NOW + SERVING_LIFE * 0.7)

        after = await read_certificate(api, "hami-webhook-tls")
        assert after.not_valid_after_utc > before.not_valid_after_utc
        after.verify_directly_issued_by(authority)
        assert await bundles(api) == [[authority]] * 3


async def test_a_new_authority_is_trusted_beside_the_old_one(
    cluster: Cluster, settings: RenewalSettings
) -> None:
    async with open_kube_api(cluster.kubeconfig) as api:
        await register(api)
        await renew(api, settings, NOW)
        old = await read_certificate(api, "hami-ca")

        await renew(api, settings, NOW + AUTHORITY_LIFE * 0.7)

        new = await read_certificate(api, "hami-ca")
        assert new != old
        (await read_certificate(api, "hami-webhook-tls")).verify_directly_issued_by(new)
        # Replicas serve the old certificate until their volume changes.
        assert await bundles(api) == [[new, old]] * 3

        await renew(api, settings, NOW + AUTHORITY_LIFE + timedelta(days=1))
        assert old not in (await bundles(api))[0]


async def test_without_the_configuration_the_certificate_is_made_all_the_same(
    cluster: Cluster, settings: RenewalSettings
) -> None:
    async with open_kube_api(cluster.kubeconfig) as api:
        await renew(api, settings, NOW)
        serving = await read_certificate(api, "hami-webhook-tls")
        await register(api)

        await renew(api, settings, NOW)

        assert await read_certificate(api, "hami-webhook-tls") == serving
        assert await bundles(api) == [[await read_certificate(api, "hami-ca")]] * 3


async def test_a_secret_that_holds_nonsense_is_replaced(
    cluster: Cluster, settings: RenewalSettings
) -> None:
    nonsense = base64.b64encode(b"nonsense").decode()
    async with open_kube_api(cluster.kubeconfig) as api:
        for name in ("hami-ca", "hami-webhook-tls"):
            secret = {
                "metadata": {"name": name},
                "type": "kubernetes.io/tls",
                "data": {"tls.crt": nonsense, "tls.key": nonsense},
            }
            await api.create("/api/v1/namespaces/hami-system/secrets", secret)

        await renew(api, settings, NOW)

        (await read_certificate(api, "hami-webhook-tls")).verify_directly_issued_by(
            await read_certificate(api, "hami-ca")
        )


LEAVES = ("hami-scheduler", "hami-postgres", "hami-redis", "hami-nats")


async def test_every_certificate_of_the_manifests_is_renewed_before_its_end(
    cluster: Cluster, settings: RenewalSettings
) -> None:
    async with open_kube_api(cluster.kubeconfig) as api:
        await renew(api, settings, NOW)
        before = {name: await read_certificate(api, f"{name}-tls") for name in LEAVES}
        await renew(api, settings, NOW + SERVING_LIFE / 2)
        assert {name: await read_certificate(api, f"{name}-tls") for name in LEAVES} == before

        await renew(api, settings, NOW + SERVING_LIFE * 0.7)

        authority = await read_certificate(api, "hami-ca")
        for name in LEAVES:
            after = await read_certificate(api, f"{name}-tls")
            assert after.not_valid_after_utc > before[name].not_valid_after_utc
            after.verify_directly_issued_by(authority)
            purpose = after.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
            assert list(purpose) == [ExtendedKeyUsageOID.SERVER_AUTH]


@pytest.mark.parametrize("registered", [True, False])
async def test_a_certificate_stays_while_its_authority_is_trusted(
    cluster: Cluster, settings: RenewalSettings, registered: bool
) -> None:
    async with open_kube_api(cluster.kubeconfig) as api:
        if registered:
            await register(api)
        await renew(api, settings, NOW)
        before = {name: await read_certificate(api, f"{name}-tls") for name in LEAVES}
        old = await read_certificate(api, "hami-ca")
        await api.delete("/api/v1/namespaces/hami-system/secrets/hami-ca")

        await renew(api, settings, NOW)

        after = {name: await read_certificate(api, f"{name}-tls") for name in LEAVES}
        new = await read_certificate(api, "hami-ca")
        # Only the webhook's configuration shows that the old one was trusted.
        issuer = old if registered else new
        assert (after == before) is registered
        for leaf in after.values():
            leaf.verify_directly_issued_by(issuer)
        bundle = await api.get("/api/v1/namespaces/hami-system/configmaps/hami-ca")
        trusted = x509.load_pem_x509_certificates(bundle["data"]["ca.crt"].encode())
        assert trusted == ([new, old] if registered else [new])


async def test_a_certificate_without_a_name_of_its_server_is_made_again(
    cluster: Cluster, settings: RenewalSettings
) -> None:
    async with open_kube_api(cluster.kubeconfig) as api:
        await renew(api, settings, NOW)
        other = await api.get("/api/v1/namespaces/hami-system/secrets/hami-redis-tls")
        path = "/api/v1/namespaces/hami-system/secrets/hami-nats-tls"
        await api.replace(path, {**await api.get(path), "data": other["data"]})

        await renew(api, settings, NOW)

        names = (await read_certificate(api, "hami-nats-tls")).extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
        assert "hami-nats.hami-system.svc" in names.value.get_values_for_type(x509.DNSName)


async def test_where_something_else_renews_nothing_is_made(cluster: Cluster) -> None:
    async with open_kube_api(cluster.kubeconfig) as api:
        await renew(api, RenewalSettings(issue=False), NOW)

        with pytest.raises(NotFound):
            await read_certificate(api, "hami-ca")
