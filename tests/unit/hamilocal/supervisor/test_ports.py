"""Ports are given to one process at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from hamilocal.supervisor import ports
from hamilocal.supervisor.plan import ServerError
from hamilocal.supervisor.ports import free_port, is_free, stable_ports

HOLDS_UNTIL_EOF = """
import sys
from pathlib import Path
from hamilocal.supervisor.ports import stable_ports
print(stable_ports(("api",), Path(sys.argv[1]))["api"], flush=True)
sys.stdin.read()
"""


def test_a_port_is_given_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_port()
    monkeypatch.setattr(ports, "_FIRST", first)
    monkeypatch.setattr(ports, "_LAST", first)

    with pytest.raises(ServerError, match="no free TCP port"):
        free_port()


def test_a_port_that_another_process_was_given_is_not_given_before_that_ends(
    tmp_path: Path,
) -> None:
    known = tmp_path / "ports.json"
    command = [sys.executable, "-c", HOLDS_UNTIL_EOF, str(known)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        held = int(other.stdout.readline())
        # It does not listen there yet.
        assert is_free(held)
        assert stable_ports(("api",), known)["api"] != held
        other.stdin.close()
    known.write_bytes(orjson.dumps({"api": held}))

    assert stable_ports(("api",), known)["api"] == held
