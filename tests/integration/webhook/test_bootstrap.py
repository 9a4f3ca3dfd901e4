"""`hami-bootstrap` against an API server: a first installation, repeats, races, old clusters."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hami_webhook.certificates import AUTHORITY_LIFE
from hami_webhook.credentials import NAMES, check_version, create
from hami_webhook.settings import RenewalSettings
from hamicommon.admission.registration import (
    ServiceReference,
    WebhookRegistration,
    webhook_configuration,
)
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.client import KubeApi, open_kube_api

from tests.contract.kubernetes.servers import Cluster, start_emulation

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
NAMESPACE = "/api/v1/namespaces/hami-system"
NOW = datetime.now(UTC)
CERTIFICATES = {
    "hami-ca",
    *(f"hami-{name}-tls" for name in ("webhook", "scheduler", "postgres", "redis", "nats")),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with start_emulation(tmp_path_factory.mktemp("kubernetes")) as found:
        found.ok(
            found.client.post("/api/v1/namespaces", json={"metadata": {"name": "hami-system"}})
        )
        yield found


@pytest.fixture
async def api(server: Cluster) -> AsyncIterator[KubeApi]:
    async with open_kube_api(Path(server.kubeconfig)) as api:
        yield api
        for kind in ("secrets", "configmaps"):
            for item in (await api.get(f"{NAMESPACE}/{kind}"))["items"]:
                await api.delete(f"{NAMESPACE}/{kind}/{item['metadata']['name']}")
        for item in (await api.get(CONFIGURATIONS))["items"]:
            await api.delete(f"{CONFIGURATIONS}/{item['metadata']['name']}")


async def read_secrets(api: KubeApi, kind: str) -> dict[str, dict[str, str]]:
    found = (await api.get(f"{NAMESPACE}/{kind}"))["items"]
    return {each["metadata"]["name"]: each["data"] for each in found}


async def test_everything_is_made_once_and_the_webhook_is_trusted(api: KubeApi) -> None:
    registration = WebhookRegistration(target=ServiceReference(), resources=("nvidia.com/gpu",))
    await api.create(CONFIGURATIONS, webhook_configuration(registration))

    await create(api, RenewalSettings(), NOW)

    secrets, maps = await read_secrets(api, "secrets"), await read_secrets(api, "configmaps")
    assert secrets.keys() == {*NAMES} | CERTIFICATES
    assert maps.keys() == {"hami-ca", "hami-nats-login"}
    bundle = base64.b64encode(maps["hami-ca"]["ca.crt"].encode()).decode()
    [found] = (await api.get(CONFIGURATIONS))["items"]
    assert {hook["clientConfig"]["caBundle"] for hook in found["webhooks"]} == {bundle}
    # What other operators read, such as CloudNativePG: the authority beside each certificate.
    authority = secrets["hami-ca"]["tls.crt"]
    assert {secrets[name]["ca.crt"] for name in CERTIFICATES - {"hami-ca"}} == {authority}

    await create(api, RenewalSettings(), NOW)

    assert await read_secrets(api, "secrets") == secrets
    assert await read_secrets(api, "configmaps") == maps


async def test_secrets_of_the_users_own_are_left_alone(api: KubeApi) -> None:
    own = {"dsn": base64.b64encode(b"postgresql://elsewhere/hami").decode()}
    await api.create(
        f"{NAMESPACE}/secrets", {"metadata": {"name": "hami-postgres-owner"}, "data": own}
    )

    await create(api, RenewalSettings(), NOW)

    assert (await read_secrets(api, "secrets"))["hami-postgres-owner"] == own


async def test_authorities_of_the_users_own_stores_are_left_alone(api: KubeApi) -> None:
    own = {"stores.crt": "theirs"}
    await api.create(f"{NAMESPACE}/configmaps", {"metadata": {"name": "hami-ca"}, "data": own})

    await create(api, RenewalSettings(), NOW)
    made = (await read_secrets(api, "configmaps"))["hami-ca"]
    await create(api, RenewalSettings(), NOW + AUTHORITY_LIFE)

    renewed = (await read_secrets(api, "configmaps"))["hami-ca"]
    assert made.keys() == renewed.keys() == {"ca.crt", "stores.crt"}
    assert made["ca.crt"] != renewed["ca.crt"]
    assert made["stores.crt"] == renewed["stores.crt"] == "theirs"


async def test_two_at_once_make_one_installation(api: KubeApi) -> None:
    await asyncio.gather(*(create(api, RenewalSettings(), NOW) for _ in range(2)))

    secrets = await read_secrets(api, "secrets")
    assert secrets.keys() == {*NAMES} | CERTIFICATES


async def test_with_cert_manager_the_authority_is_made_and_no_certificate(api: KubeApi) -> None:
    await create(api, RenewalSettings(issue=False), NOW)

    assert (await read_secrets(api, "secrets")).keys() == {*NAMES, "hami-ca"}
    assert (await read_secrets(api, "configmaps")).keys() == {"hami-ca", "hami-nats-login"}


@pytest.mark.parametrize("minor", ["9", "16", "19", "19+"])
def test_a_version_that_is_too_old_is_refused(minor: str) -> None:
    with pytest.raises(InvalidRequest, match=r"is not supported; 1\.20 is the oldest"):
        check_version({"major": "1", "minor": minor}, [])


@pytest.mark.parametrize(
    ("minor", "overlay"),
    [("20", "old-cluster"), ("22+", "old-cluster"), ("23", "v1.23"), ("27", "v1.25")],
)
def test_a_webhook_that_would_refuse_every_pod_is_not_trusted(minor: str, overlay: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"apply k8s/overlays/{overlay} instead"):
        check_version({"major": "1", "minor": minor}, ["Fail", "Ignore"])


@pytest.mark.parametrize(("minor", "policy"), [("28", "Fail"), ("36+", "Fail"), ("25", "Ignore")])
def test_what_a_version_can_take_is_trusted(minor: str, policy: str) -> None:
    check_version({"major": "1", "minor": minor}, [policy])


@pytest.mark.parametrize(
    "version", [{}, {"major": "2", "minor": "1"}, {"major": "1", "minor": "x"}]
)
def test_a_server_that_hides_its_version_is_refused(version: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="does not report its version"):
        check_version(version, [])
