"""From the spec of a container to its process: command, environment, image, users, capabilities."""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from hamicommon.k8s.types import Json
from hamilocal.servers.binaries import nats_server

from tests.e2e_manifests.node.pod_objects import PodObjects
from tests.e2e_manifests.node.pod_volumes import PodVolumes

PROJECT = Path(__file__).parents[2]
HERE = Path(__file__).parent
POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
COMMANDS = {
    "hami-scheduler": ["hami-scheduler"],
    "hami-webhook": ["hami-webhook"],
    "hami-metrics": ["hami-metrics"],
    "hami-node-agent": ["hami-node-agent"],
    "postgres": ["bash", "/stand-in/postgres-entrypoint", "postgres"],
}
"""Command of each image by default."""


class PodProcesses:
    """`gpu_env` is what the node-agent's image and host would have in its environment."""

    def __init__(
        self,
        objects: PodObjects,
        volumes: PodVolumes,
        folder: Path,
        *,
        server: httpx.URL,
        assets: Path,
        gpu_env: Mapping[str, str],
    ) -> None:
        self._objects, self._volumes, self._folder = objects, volumes, folder
        self._server, self._assets, self._gpu_env = server, assets, gpu_env

    def start(
        self, pod: Json, folder: Path, container: Json, *, argv: list[str] | None = None
    ) -> subprocess.Popen[bytes]:
        """In `folder`: its log, its root and its volumes."""
        name = container["name"]
        image = container["image"].rpartition("/")[2].partition(":")[0].partition("@")[0]
        env = self._environment(pod, container)
        command = container.get("command") or COMMANDS[image]
        argv = argv or [*command, *container.get("args", ())]
        mounts = self._volumes.mounts(pod, folder, container)
        kind = "probe" if argv is container.get("readinessProbe", {}).get("exec") else name
        root = Path(tempfile.mkdtemp(prefix="root-", dir=folder))
        spec = {
            "root": str(root),
            "mounts": [*mounts, *self._of_image(image)],
            "cwd": "/app" if image.startswith("hami-") else "/",
            "env": self._image_environment(image) | env,
            "argv": [_expand(part, env) for part in argv],
            "privileges": _privileges(pod, container),
        }
        path = root.with_suffix(".json")
        path.write_text(json.dumps(spec))
        with (folder / f"{kind}.log").open("ab") as log:
            return subprocess.Popen(
                ["unshare", "--mount", sys.executable, str(HERE / "sandbox.py"), str(path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _environment(self, pod: Json, container: Json) -> dict[str, str]:
        found = {
            "KUBERNETES_SERVICE_HOST": str(self._server.host),
            "KUBERNETES_SERVICE_PORT": str(self._server.port),
            "HOSTNAME": pod["metadata"]["name"],
        }
        for entry in container.get("env", ()):
            source = entry.get("valueFrom", {})
            if "secretKeyRef" in source:
                reference = source["secretKeyRef"]
                if reference.get("optional") and not self._objects.exists(
                    "secrets", reference["name"]
                ):
                    continue
                value = self._objects.data("secrets", reference["name"])[reference["key"]].decode()
            elif "configMapKeyRef" in source:
                reference = source["configMapKeyRef"]
                held = self._objects.data("configmaps", reference["name"])
                value = held[reference["key"]].decode()
            elif "fieldRef" in source:
                value = _field(pod, source["fieldRef"]["fieldPath"])
            else:
                value = _expand(entry.get("value", ""), found)
            found[entry["name"]] = value
        return found

    def _image_environment(self, image: str) -> dict[str, str]:
        folders = [
            str(Path(sys.executable).parent),
            str(POSTGRES[-1]),
            str(nats_server().parent),
            str(self._assets),
            "/usr/sbin:/usr/bin:/sbin:/bin",
        ]
        env = {"PATH": ":".join(folders), "PYTHONUNBUFFERED": "1", "HOME": "/"}
        return env | (dict(self._gpu_env) if image == "hami-node-agent" else {})

    def _of_image(self, image: str) -> list[Json]:
        users = self._folder / "passwd"
        users.write_text("root:x:0:0::/:/bin/sh\npostgres:x:999:999::/:/bin/sh\n")
        built = {"/etc/hosts": self._folder / "hosts", "/etc/passwd": users, "/stand-in": HERE}
        if image == "hami-scheduler":
            built["/app/migrations"] = PROJECT / "migrations"
        elif image.startswith("hami-"):
            empty = self._folder / "empty"
            empty.mkdir(exist_ok=True)
            built["/app"] = empty
        if image == "hami-node-agent":
            library = PROJECT / "native" / "libvgpu" / "build" / "libvgpu.so"
            built["/opt/hami/libvgpu.so"] = library
        return [
            {"source": str(source), "target": target, "read_only": target != "/etc/hosts"}
            for target, source in built.items()
        ]


def _expand(text: str, env: Mapping[str, str]) -> str:
    return re.sub(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)", lambda m: env.get(m[1], m[0]), text)


def _field(pod: Json, path: str) -> str:
    value: Any = pod
    for part in path.split("."):
        value = value[part]
    return str(value)


def _privileges(pod: Json, container: Json) -> list[str]:
    whole = pod["spec"].get("securityContext", {})
    own = container.get("securityContext", {})
    user = own.get("runAsUser", whole.get("runAsUser", 0))
    group = own.get("runAsGroup", whole.get("runAsGroup", 0))
    capabilities = own.get("capabilities", {})
    kept = ",".join(["-all", *(f"+{name.lower()}" for name in capabilities.get("add", ()))])
    assert capabilities.get("drop") == ["ALL"], container["name"]
    fs_group = whole.get("fsGroup")
    return [
        f"--reuid={user}",
        f"--regid={group}",
        f"--groups={fs_group}" if fs_group else "--clear-groups",
        "--inh-caps=-all",
        f"--bounding-set={kept}",
        "--no-new-privs",
        "--pdeathsig=SIGKILL",
    ]
