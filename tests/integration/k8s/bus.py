"""NATS as `k8s/` configures it, for tests: without TLS and on a free port."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hamicommon.bus.logins import account_id
from hamilocal.servers.data import nats as nats_server

from tests.processes import running

BASE = Path(__file__).parents[3] / "k8s" / "base"


def config_map(path: Path, name: str) -> dict[str, str]:
    """The data of a ConfigMap in a manifest."""
    documents = yaml.safe_load_all(path.read_text())
    (found,) = [
        item["data"]
        for item in documents
        if item["kind"] == "ConfigMap" and item["metadata"]["name"] == name
    ]
    return dict(found)


@contextmanager
def bus_server(folder: Path, login_key: Ed25519PublicKey) -> Iterator[str]:
    """The running server; every service's password is `secret`."""
    plan = nats_server.prepare(folder)
    text = config_map(BASE / "nats-config.yaml", "hami-nats")["nats.conf"]
    text = text[: text.index("tls {")] + text[text.index("jetstream {") :]
    port = urlsplit(plan.url).port
    (made,) = (Path(part) for part in plan.argv if part.endswith(".conf"))
    # The probe knows its server by the name.
    text = text.replace("hami-nats", json.loads(made.read_text())["server_name"], 1)
    text = text.replace("port: 4222", f"host: 127.0.0.1\nport: {port}", 1)
    text = text.replace("http_port: 8222\n", "").replace("/data", str(folder / "data"))
    for service in ("SCHEDULER", "WEBHOOK", "METRICS"):
        text = text.replace(f"$NATS_{service}_PASSWORD", "secret")
    text = text.replace("$NATS_LOGIN_ISSUER", account_id(login_key))
    config = folder / "manifest.conf"
    config.write_text(text)
    argv = tuple(str(config) if part.endswith(".conf") else part for part in plan.argv)
    with running(replace(plan, argv=argv), die_with_parent=True):
        yield plan.url
