"""The webhook behind its own registration, on both API servers: its requests and its answers.

The rows of the audit that admission can close: a pod took 20 to 80 GiB out of a slice of 4, or saw
every card of its node, by its spec only.
"""

import asyncio
import functools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hami_webhook.bootstrap import open_app
from hami_webhook.settings import Settings
from hamicommon.admission.registration import registration_of, webhook_configuration
from hamicommon.admission.tampering.findings import TamperingPolicy
from hamicommon.device_config import DeviceConfig
from hamicommon.k8s.types import Json
from hamicommon.settings import AdmissionSettings
from hamicommon.vendors.registry import Vendors
from hamilocal.servers.certificates import Authority, write_certificate

from tests.contract.kubernetes.servers import (
    STRATEGIC_PATCH,
    Cluster,
    emulated_or_real,
    fresh_namespace,
)
from tests.waiting import PATIENCE_S, eventually

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
GPU, MEM = "nvidia.com/gpu", "nvidia.com/gpumem"
SLICE = {GPU: "1", MEM: "4096"}
ALL_CARDS = {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
Answers = httpx.Response


@pytest.fixture(scope="module", params=["emulator", "real"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with emulated_or_real(request, tmp_path_factory.mktemp("kubernetes")) as cluster:
        if cluster.minor < 28:
            pytest.skip(f"matchConditions came with Kubernetes 1.28; this is 1.{cluster.minor}")
        yield cluster


class Registered:
    """A namespace whose pods come to a webhook of ours."""

    def __init__(self, cluster: Cluster, https: httpx.AsyncClient) -> None:
        self.cluster, self._https = cluster, https

    async def create(self, pod: Json, *, dry: bool = False) -> Answers:
        query = {"dryRun": "All"} if dry else {}
        post = functools.partial(self.cluster.client.post, json=pod, params=query)
        return await asyncio.to_thread(post, self.cluster.path("pods"))

    async def patch(self, path: str, change: Json) -> Answers:
        return await asyncio.to_thread(self.cluster.patch, path, change, STRATEGIC_PATCH)

    async def add_ephemeral(self, name: str, container: Json) -> Answers:
        added = {"name": "debugger", "image": "x", **container}
        path = self.cluster.path("pods", f"{name}/ephemeralcontainers")
        return await self.patch(path, {"spec": {"ephemeralContainers": [added]}})

    async def reviews(self) -> int:
        """Return the webhook's count of reviews."""
        text = (await self._https.get("/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith("hami_webhook_reviews_tot")]
        return sum(int(float(line.rpartition(" ")[2])) for line in lines)


@asynccontextmanager
async def register_webhook(
    server: Cluster, folder: Path, **policy: Any
) -> AsyncIterator[Registered]:
    cluster = fresh_namespace(server)
    authority = Authority.new("test")
    authority.make_serving(
        "webhook", certificate_file=folder / "tls.crt", key_file=folder / "tls.key"
    )
    write_certificate(folder / "ca.pem", authority.certificate)
    admission = AdmissionSettings(**policy)
    settings = Settings(
        http_bind="127.0.0.1:0",
        tls_cert_file=folder / "tls.crt",
        tls_key_file=folder / "tls.key",
        admission=admission,
    )
    async with asyncio.timeout(PATIENCE_S), open_app(settings) as app:
        address = f"https://127.0.0.1:{app.port}"
        registration = registration_of(
            Vendors.from_config(DeviceConfig()),
            target=f"{address}/webhook",
            ca_bundle_pem=(folder / "ca.pem").read_bytes(),
            tampering=TamperingPolicy.of(admission),
        )
        body = webhook_configuration(registration)
        body["metadata"]["name"] = f"hook-{cluster.namespace}"
        here = {"key": "kubernetes.io/metadata.name", "operator": "In"}
        for hook in body["webhooks"]:
            hook["namespaceSelector"]["matchExpressions"].append(
                {**here, "values": [cluster.namespace]}
            )
        post = functools.partial(cluster.client.post, json=body)
        cluster.ok(await asyncio.to_thread(post, CONFIGURATIONS))
        try:
            async with httpx.AsyncClient(base_url=address, verify=False) as https:
                found = Registered(cluster, https)
                await until_asked(found)
                yield found
        finally:
            path = f"{CONFIGURATIONS}/hook-{cluster.namespace}"
            await asyncio.to_thread(cluster.client.delete, path)


async def until_asked(found: Registered) -> None:
    """Wait for a review: the real server learns a registration later."""

    async def is_reviewed() -> bool:
        await found.create(a_pod("probe", SLICE), dry=True)
        return await found.reviews() > 0

    await eventually(is_reviewed, "the webhook to be asked")


def a_pod(name: str, limits: Json | None = None, part: str = "containers", **more: Any) -> Json:
    main: Json = {"name": "main", "image": "x", "resources": {"limits": limits or {}}}
    spec: Json = {"containers": [main], "volumes": [{"name": "v", "emptyDir": {}}]}
    if more:
        spec[part] = [*spec.get(part, ()), {"name": "other", "image": "x", **more}]
    return {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name}, "spec": spec}


def env(name: str, value: str) -> Json:
    return {"env": [{"name": name, "value": value}]}


def mount(path: str) -> Json:
    return {"volumeMounts": [{"name": "v", "mountPath": path}]}


WAYS: list[tuple[str, Json]] = [
    ("CUDA_DISABLE_CONTROL", env("CUDA_DISABLE_CONTROL", "true")),
    ("/etc/ld.so.preload", mount("/etc/ld.so.preload")),
    ("/etc/hami", mount("/etc/hami")),
    ("/etc/../etc/hami", mount("/etc/../etc/hami")),
    ("CUDA_DEVICE_MEMORY_LIMIT_0", env("CUDA_DEVICE_MEMORY_LIMIT_0", "70g")),
    ("CUDA_DEVICE_MEMORY_SHARED_CACHE", env("CUDA_DEVICE_MEMORY_SHARED_CACHE", "/tmp/mine")),
    ("GPU_CORE_UTILIZATION_POLICY", env("GPU_CORE_UTILIZATION_POLICY", "disable")),
    ("NVIDIA_VISIBLE_DEVICES", ALL_CARDS),
    ("privileged", {"securityContext": {"privileged": True}}),
]
"""H3 and H4, by the name in the sentence."""


async def test_the_ways_out_of_a_slice_are_refused_whatever_label_or_scheduler_a_pod_has(
    server: Cluster, tmp_path: Path
) -> None:
    async with register_webhook(server, tmp_path) as found:
        for part in ("containers", "initContainers"):
            for named, way in WAYS:
                pod = a_pod("tries", SLICE, part, **way)
                pod["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
                answer = await found.create(pod)
                assert answer.status_code == 403, (named, answer.text)
                assert named in answer.json()["message"]
        for spec in ({"schedulerName": "mine"}, {"schedulerName": "mine", "nodeName": "node-0"}):
            pod = a_pod("tries", {}, **ALL_CARDS)
            pod["spec"] |= spec
            answer = await found.create(pod)
            assert answer.status_code == 403, answer.text
            assert "NVIDIA_VISIBLE_DEVICES" in answer.json()["message"]
        first = a_pod("tries", {**SLICE, "nvidia.com/priority": "0"})
        assert "expected 1 or more" in (await found.create(first)).json()["message"]


async def test_only_pods_that_concern_it_come_to_it(server: Cluster, tmp_path: Path) -> None:
    async with register_webhook(server, tmp_path) as found:
        asked = await found.reviews()
        for number, more in enumerate(
            (
                {},
                env("NVIDIA_VISIBLE_DEVICES", "none"),
                env("CUDA_DISABLE_CONTROL", "true"),
                mount("/etc/hami"),
                {"securityContext": {"privileged": True}},
            )
        ):
            assert (await found.create(a_pod(f"plain-{number}", **more))).status_code == 201
        assert await found.reviews() == asked

        with_card = await found.create(a_pod("asks", SLICE, **mount("/data")))
        assert with_card.status_code == 201
        assert with_card.json()["spec"]["schedulerName"] == "hami-scheduler"
        assert await found.reviews() > asked


async def test_ephemeral_containers_are_judged(server: Cluster, tmp_path: Path) -> None:
    async with register_webhook(server, tmp_path) as found:
        assert (await found.create(a_pod("sliced", SLICE))).status_code == 201
        assert (await found.create(a_pod("plain"))).status_code == 201

        for way in (ALL_CARDS, mount("/etc/hami"), {"securityContext": {"privileged": True}}):
            refused = await found.add_ephemeral("sliced", way)
            assert refused.status_code == 403, refused.text
        assert (await found.add_ephemeral("plain", ALL_CARDS)).status_code == 403

        assert (await found.add_ephemeral("sliced", {})).status_code == 200
        assert (await found.add_ephemeral("plain", {"tty": True})).status_code == 200
        # The webhook is not asked about labels and the like.
        path = found.cluster.path("pods", "sliced")
        asked = await found.reviews()
        assert (await found.patch(path, {"metadata": {"labels": {"a": "b"}}})).status_code == 200
        assert await found.reviews() == asked


async def test_where_it_is_stripped_pods_and_ephemeral_containers_pass_without_it(
    server: Cluster, tmp_path: Path
) -> None:
    async with register_webhook(server, tmp_path, tampering="strip") as found:
        pod = a_pod("stripped", SLICE, **ALL_CARDS, **mount("/etc"))
        answer = await found.create(pod)
        assert answer.status_code == 201, answer.text
        other = answer.json()["spec"]["containers"][1]
        hidden = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]
        assert other["env"] == hidden
        assert "/etc" not in {each["mountPath"] for each in other.get("volumeMounts", ())}
        assert any("removed: container 'other'" in text for text in warnings_of(answer))

        added = await found.add_ephemeral("stripped", ALL_CARDS)
        assert added.status_code == 200, added.text
        [debugger] = added.json()["spec"]["ephemeralContainers"]
        assert debugger["env"] == hidden


def warnings_of(answer: Answers) -> list[str]:
    return answer.headers.get_list("warning")


async def test_an_operator_leaves_a_namespace_out(server: Cluster, tmp_path: Path) -> None:
    async with register_webhook(server, tmp_path) as found:
        way = a_pod("tries", SLICE, **ALL_CARDS)
        assert (await found.create(way, dry=True)).status_code == 403
        label = {"metadata": {"labels": {"hami.io/webhook": "ignore"}}}
        await found.patch(f"/api/v1/namespaces/{found.cluster.namespace}", label)

        async def left_out() -> bool:
            return (await found.create(way, dry=True)).status_code == 201

        await eventually(left_out, "the namespace to be left out")


async def test_misspelt_resources_are_warned_of(server: Cluster, tmp_path: Path) -> None:
    async with register_webhook(server, tmp_path) as found:
        for resource in ("nvdia.com/gpu", "nvidia.com/gpumemory", "nvidia/gpu", "nvidia.com/GPU"):
            answer = await found.create(a_pod("typo", {resource: "1"}), dry=True)
            assert answer.is_success, answer.text
            assert f"asks for {resource} 1" in answer.headers["warning"]


async def test_a_quota_that_would_limit_nothing_is_refused(server: Cluster, tmp_path: Path) -> None:
    async with register_webhook(server, tmp_path) as found:
        path = found.cluster.path("resourcequotas")
        for key, amount, right in (
            ("nvidia.com/gpumem", "4000", "write limits.nvidia.com/gpumem: 4000"),
            ("requests.nvidia.com/gpumem", "4000", "write limits.nvidia.com/gpumem: 4000"),
            ("limits.nvidia.com/gpumem", "20Gi", "the unit is MiB: write 20480"),
            ("limits.nvidia.com/gpu-mem", "4000", "was limits.nvidia.com/gpumem meant?"),
        ):
            body = a_quota({key: amount})
            answer = await asyncio.to_thread(functools.partial(server.client.post, path, json=body))
            assert answer.status_code == 422, answer.text
            assert right in answer.json()["message"]
        good = a_quota({"limits.nvidia.com/gpumem": "20480", "limits.memory": "20Gi"})
        server.ok(await asyncio.to_thread(functools.partial(server.client.post, path, json=good)))
        worse = functools.partial(
            server.client.patch,
            f"{path}/q",
            json={"spec": {"hard": {"nvidia.com/gpumem": "1"}}},
            headers={"content-type": "application/merge-patch+json"},
        )
        assert (await asyncio.to_thread(worse)).status_code == 422


def a_quota(hard: Json) -> Json:
    return {
        "kind": "ResourceQuota",
        "apiVersion": "v1",
        "metadata": {"name": "q"},
        "spec": {"hard": hard},
    }
