"""Volumes of every kind that the manifests have, as folders of this machine."""

import contextlib
import os
from pathlib import Path

from hamicommon.k8s.types import Json

from tests.e2e_manifests.node.pod_objects import NAMESPACE, Missing, PodObjects

# Places of the machine itself that pods look into, but for the kubelet's in the last one.
MACHINES_OWN = ("/sys", "/proc", "/usr/local", "/var/lib")


class PodVolumes:
    """Volumes of pods; `kubelet` is the folder used as /var/lib/kubelet."""

    def __init__(self, objects: PodObjects, folder: Path, ca_file: Path, kubelet: Path) -> None:
        self._objects, self._folder, self._ca_file = objects, folder, ca_file
        self._kubelet = kubelet

    def mounts(self, pod: Json, folder: Path, container: Json) -> list[Json]:
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
        found = []
        for mount in container.get("volumeMounts", ()):
            # The API server adds the token's volume, under a generated name.
            source = self._volume(pod, folder, volumes[mount["name"]])
            found.append(
                {
                    "source": str(source),
                    "target": mount["mountPath"],
                    "read_only": mount.get("readOnly", False),
                }
            )
        return found

    def _volume(self, pod: Json, folder: Path, volume: Json) -> Path:
        if "hostPath" in volume:
            return self._host(volume["hostPath"])
        place = folder / "volumes" / volume["name"]
        if "persistentVolumeClaim" in volume:
            place = self._folder / "claims" / volume["persistentVolumeClaim"]["claimName"]
        group = pod["spec"].get("securityContext", {}).get("fsGroup", 0)
        if place.exists() and ("emptyDir" in volume or "persistentVolumeClaim" in volume):
            return place
        place.mkdir(parents=True, exist_ok=True)
        if "emptyDir" in volume or "persistentVolumeClaim" in volume:
            os.chown(place, 0, group)
            place.chmod(0o2775)
            return place
        if "secret" in volume:
            source = volume["secret"]
            files = self._objects.data("secrets", source["secretName"])
            files = _choose_files(files, source.get("items"))
            mode = source.get("defaultMode", 0o644)
        elif "configMap" in volume:
            files, mode = self._objects.data("configmaps", volume["configMap"]["name"]), 0o644
            mode = volume["configMap"].get("defaultMode", mode)
        else:
            files, mode = self._projected_files(pod, volume["projected"]), 0o640
        for name, content in files.items():
            _write(place / name, content, group, mode)
        return place

    def refresh(self, pod: Json, folder: Path) -> None:
        """Write the current Secrets and ConfigMaps into a running pod, as a kubelet does.

        A Secret that is away leaves the files as they are.
        """
        for volume in pod["spec"].get("volumes", ()):
            if ("secret" in volume or "configMap" in volume) and (
                folder / "volumes" / volume["name"]
            ).exists():
                with contextlib.suppress(Missing):
                    self._volume(pod, folder, volume)

    def _projected_files(self, pod: Json, volume: Json) -> dict[str, bytes]:
        files: dict[str, bytes] = {}
        for source in volume["sources"]:
            if "serviceAccountToken" in source:
                wanted = source["serviceAccountToken"]
                seconds = wanted.get("expirationSeconds", 3600)
                token = self._objects.token(pod, wanted.get("audience"), seconds)
                files[wanted["path"]] = token.encode()
            elif "configMap" in source:
                files["ca.crt"] = self._ca_file.read_bytes()
            else:
                files["namespace"] = NAMESPACE.encode()
        return files

    def _host(self, volume: Json) -> Path:
        path = volume["path"]
        if path.startswith("/var/lib/kubelet"):
            place = self._kubelet / path.removeprefix("/var/lib/kubelet/")
        elif path.startswith(MACHINES_OWN):
            place = Path(path)
        else:
            place = self._folder / "host" / path[1:]
        if volume.get("type") == "Directory":
            assert place.is_dir(), f"{path}: hostPath type check failed"
        place.mkdir(parents=True, exist_ok=True)
        return place


def _write(path: Path, content: bytes, group: int, mode: int) -> None:
    """Write a changed file atomically: another process may be reading."""
    if path.exists() and path.read_bytes() == content:
        return
    # Not beside it: programs that read the folder use every file in it.
    whole = path.parent.with_name(f"{path.parent.name}.{path.name}.written")
    whole.write_bytes(content)
    os.chown(whole, 0, group)
    whole.chmod(mode)
    whole.replace(path)


def _choose_files(files: dict[str, bytes], items: list[Json] | None) -> dict[str, bytes]:
    if items is None:
        return files
    return {item["path"]: files[item["key"]] for item in items}
