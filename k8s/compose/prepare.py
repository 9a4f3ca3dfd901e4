"""Makes what the containers of docker-compose.yml share: keys, certificates, configurations.

`prepare.py files` writes them into /shared; `prepare.py kubeconfig CA` the one of the API server
that this authority signed; `prepare.py register` gives that server the webhook. Each may run any
number of times.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Literal

import yaml
from hamicommon import device_config
from hamicommon.admission.registration import registration_of, webhook_configuration
from hamicommon.errors import Conflict
from hamicommon.k8s.client import open_kube_api
from hamicommon.settings import describe
from hamicommon.vendors.registry import Vendors
from hamilocal.servers.certificates import kubeconfig, write_file
from hamilocal.servers.data.nats import (
    agent_nats_user,
    render_nats_config,
    service_nats_users,
)
from hamilocal.system.layout import ensure_credentials
from hamilocal.system.options import LocalNode, fakegpu_config
from hamilocal.system.system import scheduler_configuration
from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

SHARED = Path("/shared")
NODE = Path("/node")
KUBECONFIG = SHARED / "kubeconfig"
SERVING = ("apiserver", "webhook")
NATS_PORT = 4222
# Of the health check alone, which runs inside the container.
NATS_MONITOR = "127.0.0.1:8222"
# The scheduler inside k3s has a user of its own, before anybody could give it another.
SCHEDULER_KUBECONFIG = {
    "emulated": str(KUBECONFIG),
    "k3s": "/var/lib/rancher/k3s/server/cred/scheduler.kubeconfig",
}


class Settings(BaseSettings):
    """`HAMI_*` of the environment, as docker-compose.yml and .env.example have them."""

    model_config = SettingsConfigDict(env_prefix="HAMI_")

    kubernetes: Literal["emulated", "k3s"] = "emulated"
    local_password: SecretStr = Field(min_length=1)
    node_name: str = Field(default="node-0", pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
    gpus: int = Field(default=4, ge=1, le=16)
    gpu_model: str = Field(default="NVIDIA A100-SXM4-80GB", min_length=1)
    gpu_memory_mib: int = Field(default=81920, ge=1024)


def files(settings: Settings) -> None:
    """Everything that is a file and needs no API server."""
    ensure_credentials(SHARED, serving=SERVING)
    SHARED.chmod(0o755)
    scheduler = scheduler_configuration(
        kubeconfig_path=SCHEDULER_KUBECONFIG[settings.kubernetes],
        extender_url="http://scheduler:9443",
        scheduler_name="hami-scheduler",
        resources=served().resource_names,
    )
    (SHARED / "kube-scheduler.yaml").write_text(yaml.safe_dump(scheduler))
    node = LocalNode(
        name=settings.node_name,
        gpus=settings.gpus,
        model=settings.gpu_model,
        memory_mib=settings.gpu_memory_mib,
    )
    driver = fakegpu_config(node, system="compose", state=str(NODE / "fakegpu.state"))
    (SHARED / "fakegpu.json").write_text(json.dumps(driver, indent=2))
    password = settings.local_password.get_secret_value()
    write_file(SHARED / "nats.conf", nats_configuration(node.name, password), private=True)


def nats_configuration(node: str, password: str) -> bytes:
    """Each service may do what it does, as in a cluster."""
    users = [*service_nats_users(lambda _name: password), agent_nats_user(node, password)]
    text = render_nats_config(
        port=NATS_PORT, store_dir="/data", server_name="hami-nats", users=users
    )
    return json.dumps(json.loads(text) | {"host": "0.0.0.0", "http": NATS_MONITOR}).encode()


def write_kubeconfig(authority: Path) -> None:
    """The administrator's, for every container."""
    config = kubeconfig(
        server="https://apiserver:6443",
        authority=authority.read_bytes(),
        token=ensure_credentials(SHARED, serving=SERVING).secret("kubernetes-admin"),
    )
    SHARED.chmod(0o755)
    KUBECONFIG.write_text(yaml.safe_dump(config))


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


def main() -> None:
    """Run the step that the arguments name."""
    match sys.argv[1:]:
        case ["files"]:
            try:
                files(Settings())  # type: ignore[call-arg]  # required fields come from variables
            except ValidationError as exc:
                sys.exit(f"prepare: {describe(exc, Settings)}")
        case ["kubeconfig", authority]:
            write_kubeconfig(Path(authority))
        case ["register"]:
            asyncio.run(register())
        case _:
            sys.exit("usage: prepare.py files|kubeconfig CA|register")


if __name__ == "__main__":
    main()
