"""Makes what the containers of docker-compose.yml share: keys, certificates, configurations.

`prepare.py files` writes them into /shared, once; `prepare.py register` gives the emulated API
server of the webhook. Both may run any number of times.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import yaml
from hamicommon import device_config
from hamicommon.admission.registration import registration_of, webhook_configuration
from hamicommon.errors import Conflict
from hamicommon.k8s.client import open_kube_api
from hamicommon.vendors.registry import Vendors
from hamilocal.servers.control_plane.kubeconfig import kubeconfig
from hamilocal.system.credentials import ensure_credentials
from hamilocal.system.kubernetes import scheduler_configuration
from hamilocal.system.nodes import fakegpu_config, simulated_nodes

SHARED = Path("/shared")
NODE = Path("/node")
KUBECONFIG = SHARED / "kubeconfig"
GPUS = 8
MODEL = "NVIDIA A100-SXM4-80GB"
MEMORY_MIB = 81920


def files() -> None:
    """Everything that is a file."""
    made = ensure_credentials(SHARED, serving=("apiserver", "webhook"))
    SHARED.chmod(0o755)
    config = kubeconfig(
        server="https://apiserver:6443",
        authority=made.ca.read_bytes(),
        token=made.secret("kubernetes-admin"),
    )
    KUBECONFIG.write_text(yaml.safe_dump(config))
    scheduler = scheduler_configuration(
        kubeconfig_path=str(KUBECONFIG),
        extender_url="http://scheduler:9443",
        scheduler_name="hami-scheduler",
        resources=served().resource_names,
    )
    (SHARED / "kube-scheduler.yaml").write_text(yaml.safe_dump(scheduler))
    (node,) = simulated_nodes(count=1, gpus=GPUS, model=MODEL, memory_mib=MEMORY_MIB)
    driver = fakegpu_config(node, system="compose", state=str(NODE / "fakegpu.state"))
    (SHARED / "fakegpu.json").write_text(json.dumps(driver, indent=2))


def served() -> Vendors:
    """The services of docker-compose.yml start with HAMi's default device configuration."""
    return Vendors.from_config(device_config.load(None))


async def register() -> None:
    """The MutatingWebhookConfiguration."""
    collection = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    body = webhook_configuration(
        registration_of(
            served(),
            target="https://webhook:8443/webhook",
            ca_bundle_pem=(SHARED / "ca.pem").read_bytes(),
        )
    )
    async with open_kube_api(KUBECONFIG) as api:
        try:
            await api.create(collection, body)
        except Conflict:
            path = f"{collection}/{body['metadata']['name']}"
            body["metadata"]["resourceVersion"] = (await api.get(path))["metadata"][
                "resourceVersion"
            ]
            await api.replace(path, body)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["files"]:
            files()
        case ["register"]:
            asyncio.run(register())
        case _:
            sys.exit("prepare.py files|register")
