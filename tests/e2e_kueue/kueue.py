"""The real Kueue on a real control plane, with its webhooks registered.

Its folder holds the program `kueue` and `manifests.yaml`, as a release of Kueue has it. It runs
outside of the cluster, so everything that names its Service is given its address.
"""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest
import yaml
from hamicommon.k8s.types import Json
from hamilocal.servers.certificates import Authority, write_certificate
from hamilocal.supervisor.plan import ServerPlan
from hamilocal.supervisor.ports import LOOPBACK, free_port

from tests.processes import ServerProcess, http_ready, running
from tests.waiting import wait

VARIABLE = "HAMI_KUEUE"
NAMESPACE = "kueue-system"
FRAMEWORKS = ["batch/job", "pod", "deployment"]
_CERTIFICATES = "/etc/kueue/metrics/certs"
"""Folder where Kueue looks for its metrics certificate; no setting names another one."""
_DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_KINDS = {
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "MutatingWebhookConfiguration": (
        "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    ),
    "ValidatingWebhookConfiguration": (
        "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KueueFolder:
    """The program, and the objects that an installation creates."""

    program: Path
    manifests: Path


def find_kueue() -> KueueFolder:
    """Return the folder that the variable names; skips the case where there is none."""
    named = os.environ.get(VARIABLE)
    if not named:
        pytest.skip(f"{VARIABLE} names no folder with kueue and its manifests.yaml")
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("kueue needs root and unshare, for a certificate at a fixed path")
    found = KueueFolder(program=Path(named) / "kueue", manifests=Path(named) / "manifests.yaml")
    for file in (found.program, found.manifests):
        if not file.exists():
            raise pytest.UsageError(f"{VARIABLE}={named} has no {file.name}")
    return found


@contextmanager
def running_kueue(
    folder: Path,
    *,
    found: KueueFolder,
    api: httpx.Client,
    kubeconfig: str,
    configuration: Mapping[str, Json],
) -> Iterator[ServerProcess]:
    """Kueue with these settings runs inside the block; its objects stay."""
    folder.mkdir()
    certificates = folder / "certificates"
    certificates.mkdir()
    authority = Authority.new("kueue")
    write_certificate(certificates / "ca.crt", authority.certificate)
    authority.make_serving(
        "kueue",
        certificate_file=certificates / "tls.crt",
        key_file=certificates / "tls.key",
    )
    port, health = free_port(), free_port()
    settings = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "health": {"healthProbeBindAddress": f"{LOOPBACK}:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": LOOPBACK, "port": port, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": FRAMEWORKS},
        "clientConnection": {"qps": 300, "burst": 500},
        "featureGates": {"VisibilityOnDemand": False},
        **configuration,
    }
    file = folder / "configuration.yaml"
    file.write_text(yaml.safe_dump(settings))
    script = (
        f'mount -t tmpfs tmpfs /etc && mkdir -p {_CERTIFICATES} && cp "$0"/tls.* {_CERTIFICATES}'
        ' && exec "$@"'
    )
    url = f"http://{LOOPBACK}:{health}"
    plan = ServerPlan(
        name="kueue",
        prefix=("unshare", "--mount", "--", "sh", "-c", script, str(certificates)),
        argv=(
            str(found.program),
            f"--config={file}",
            f"--kubeconfig={kubeconfig}",
            "--zap-log-level=3",
        ),
        cwd=folder,
        log_path=folder / "kueue.log",
        url=url,
        port=health,
        probe=partial(http_ready, f"{url}/readyz"),
        start_timeout_s=120.0,
    )
    _install(api, found.manifests, f"https://{LOOPBACK}:{port}", certificates / "ca.crt")
    with running(plan, die_with_parent=True) as kueue:
        yield kueue


def _install(api: httpx.Client, manifests: Path, url: str, authority: Path) -> None:
    """Create Kueue's kinds and its webhooks, which are called at the address."""
    bundle = base64.b64encode(authority.read_bytes()).decode()
    objects = [each for each in yaml.safe_load_all(manifests.read_text()) if each]
    api.post("/api/v1/namespaces", json={"metadata": {"name": NAMESPACE}})
    for item in (each for kind in _KINDS for each in objects if each["kind"] == kind):
        hooks = item.get("webhooks") or [item["spec"].get("conversion", {}).get("webhook", {})]
        for hook in hooks:
            if service := hook.get("clientConfig", {}).get("service"):
                hook["clientConfig"] = {"url": url + service["path"], "caBundle": bundle}
        path = f"{_KINDS[item['kind']]}/{item['metadata']['name']}"
        answer = api.patch(
            path,
            params={"fieldManager": "tests", "force": "true"},
            content=yaml.safe_dump(item),
            headers={"content-type": "application/apply-patch+yaml"},
        )
        assert answer.status_code in (200, 201), answer.text
    names = {
        each["spec"]["names"]["plural"]
        for each in objects
        if each["kind"] == "CustomResourceDefinition"
    }

    def has_kinds() -> bool:
        groups = api.get("/apis", headers={"accept": _DISCOVERY}).json()["items"]
        found = {
            resource["resource"]
            for group in groups
            if group["metadata"]["name"] == "kueue.x-k8s.io"
            for version in group["versions"]
            if version["version"] == "v1beta2"
            for resource in version["resources"]
        }
        return names <= found

    wait(has_kinds, "the API server to show Kueue's kinds to clients")
