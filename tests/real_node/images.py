"""Container images made by hand, for machines where nothing can be pulled.

An image is one layer of files of this machine: programs, the libraries that they load, and
whatever a test adds. Written as a docker archive, which `ctr images import` reads.
"""

import hashlib
import io
import json
import platform
import re
import subprocess
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hamilocal.supervisor.plan import ServerError

_LDD_TIMEOUT_S = 20.0
_LOADED = re.compile(r"(?:=> )?(/\S+) \(0x")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def with_libraries(programs: Iterable[Path]) -> dict[str, Path]:
    """The programs and all shared libraries that they load, each at its own path."""
    files: dict[str, Path] = {}
    for program in programs:
        files[str(program)] = program
        done = subprocess.run(
            ["ldd", program], capture_output=True, text=True, timeout=_LDD_TIMEOUT_S, check=False
        )
        for match in _LOADED.finditer(done.stdout):
            files[match[1]] = Path(match[1])
    return files


def write_image(
    archive: Path,
    *,
    name: str,
    files: Mapping[str, Path | bytes],
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    folders: Sequence[str] = ("tmp", "etc", "proc", "sys", "dev", "run", "var"),
) -> Path:
    """Write a docker archive of one layer; `files` maps paths in the image to files or contents.

    `name` is what pods ask for (`host/repository:tag`). The same files give the same image.

    Raises:
        ServerError: a file is missing.
    """
    layer = _layer(files, folders)
    digest = hashlib.sha256(layer).hexdigest()
    config = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {
            "Env": [f"{key}={value}" for key, value in (environment or {}).items()]
            or ["PATH=/usr/local/bin:/usr/bin:/bin"],
            "Cmd": list(command),
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created_by": "hamictl"}],
    }
    body = json.dumps(config).encode()
    config_name = f"{hashlib.sha256(body).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": [f"{digest}/layer.tar"]}]
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w") as outer:
        _put(outer, config_name, body, 0o644)
        _put(outer, f"{digest}/layer.tar", layer, 0o644)
        _put(outer, "manifest.json", json.dumps(manifest).encode(), 0o644)
    return archive


def _layer(files: Mapping[str, Path | bytes], folders: Sequence[str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for folder in folders:
            entry = tarfile.TarInfo(folder)
            entry.type = tarfile.DIRTYPE
            entry.mode = 0o1777 if folder == "tmp" else 0o755
            layer.addfile(entry)
        for path, source in sorted(files.items()):
            if isinstance(source, bytes):
                _put(layer, path.lstrip("/"), source, 0o755)
                continue
            try:
                body, mode = source.read_bytes(), source.stat().st_mode & 0o777
            except OSError as exc:
                raise ServerError(f"a file of the image is missing: {exc}") from exc
            _put(layer, path.lstrip("/"), body, mode)
    return buffer.getvalue()


def _put(archive: tarfile.TarFile, name: str, body: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(body), mode
    archive.addfile(entry, io.BytesIO(body))
