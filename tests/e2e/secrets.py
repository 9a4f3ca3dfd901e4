"""Search for secrets in the logs, traces and answers of a local system."""

import base64
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from tests.e2e.system import System

SHORTEST = 16
"""Characters; a shorter secret would be found by chance."""


def secrets_of(system: System) -> Mapping[str, str]:
    """Passwords, tokens and the lines of keys, by where they are kept."""
    found = {"the ledger's password": urlsplit(system.described["postgres_dsn"]).password or ""}
    for path in sorted((system.folder / "credentials").iterdir()):
        if path.suffix == ".secret":
            found[path.name] = path.read_text().strip()
        elif path.suffix == ".key":
            found |= _of_key(path)
    for user in yaml.safe_load(Path(system.described["kubeconfig"]).read_text())["users"]:
        found["the kubeconfig's token"] = user["user"]["token"]
    kept = {name: secret for name, secret in found.items() if len(secret) >= SHORTEST}
    assert len(kept) > 5, sorted(found)
    return kept


def _of_key(path: Path) -> dict[str, str]:
    content = path.read_bytes()
    if not content.startswith(b"-----"):
        return {path.name: base64.b64encode(content).decode()}
    lines = content.decode().splitlines()
    return {f"{path.name}:{n}": line for n, line in enumerate(lines) if not line.startswith("-")}


def leaks(secrets: Mapping[str, str], texts: Mapping[str, str]) -> list[str]:
    """`SECRET in PLACE` for each that is in a text."""
    return [
        f"{name} in {place}"
        for place, text in texts.items()
        for name, secret in secrets.items()
        if secret in text
    ]


def written_by(system: System) -> dict[str, str]:
    """Every log and every file of spans."""
    return _texts([*system.folder.glob("logs/*.log"), *system.folder.glob("traces/*.jsonl")])


def _texts(paths: Iterable[Path]) -> dict[str, str]:
    return {path.name: path.read_text(errors="replace") for path in sorted(paths)}
