"""hamictl on terminals and in pipes: hostile names, old encodings, readers that leave."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hamictl.__main__ import app
from hamictl.exit_codes import ExitCode
from typer.testing import CliRunner

PATIENCE_S = 120
HAMICTL = Path(sys.executable).parent / "hamictl"
# A title, a clipboard, a colour; the same in 8 bits; text from right to left; a bell.
HOSTILE = "\x1b]0;owned\x07\x1b[31mred\x9b31m\u202egnp\x08\x7f"
SPAN = {
    "name": f"filter{HOSTILE}",
    "service": "hami-scheduler",
    "context": {"trace_id": "a" * 32, "span_id": "1" * 16},
    "parent_id": None,
    "start_time": "2025-11-20T14:00:00Z",
    "end_time": "2025-11-20T14:00:01Z",
    "attributes": {
        "k8s.pod.uid": "u",
        "k8s.namespace.name": "ns",
        "k8s.pod.name": "p",
        "hami.outcome": HOSTILE,
    },
}


@pytest.fixture
def spans(tmp_path: Path) -> Path:
    """Write the spans of a pod `ns/p`, with a hostile name among them."""
    path = tmp_path / "spans.jsonl"
    path.write_text(json.dumps(SPAN) + "\n")
    return path


def environment(**changes: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HAMI")}
    return kept | {"HAMI_FOLDER": "/nowhere", "TERM": "xterm-256color"} | changes


def on_a_terminal(*argv: str) -> str:
    """Return both streams' output on a terminal."""
    ours, theirs = pty.openpty()
    with ThreadPoolExecutor(1) as pool, pytest.MonkeyPatch.context() as patch:
        got = pool.submit(_all_of, ours)
        with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
            patch.setattr(sys, "stdout", terminal)
            patch.setattr(sys, "stderr", terminal)
            patch.setenv("HAMI_FOLDER", "/nowhere")
            patch.setenv("TERM", "xterm-256color")
            with suppress(SystemExit):
                app(list(argv), prog_name="hamictl")
        return got.result(PATIENCE_S).decode().replace("\r\n", "\n")


def _all_of(descriptor: int) -> bytes:
    got = b""
    with suppress(OSError), os.fdopen(descriptor, "rb", buffering=0) as reader:
        # A terminal whose other end is closed answers with an error.
        while more := reader.read(65536):
            got += more
    return got


def in_a_pipe(*argv: str, **changes: str) -> str:
    done = CliRunner().invoke(app, argv, env={"HAMI_FOLDER": "/nowhere", **changes})
    assert done.exit_code == ExitCode.DONE, done.output
    return done.stdout


@pytest.mark.parametrize("form", ["table", "json", "yaml", "csv", "name", "jsonpath={.items[*]}"])
def test_no_name_of_the_cluster_is_obeyed_by_a_terminal(spans: Path, form: str) -> None:
    shown = on_a_terminal("trace", "ns/p", "--spans", str(spans), "-o", form, "--color", "never")

    assert shown.strip()
    assert [char for char in shown if not char.isprintable() and char not in "\n\t"] == []


def test_a_message_is_not_obeyed_either(tmp_path: Path) -> None:
    shown = on_a_terminal("trace", "ns/p", "--spans", f"{tmp_path}/{HOSTILE}")

    assert "No such file" in shown
    assert "\x1b]" not in shown
    assert "\x9b" not in shown


def test_a_program_gets_the_name_itself(spans: Path) -> None:
    asked = ("trace", "ns/p", "--spans", str(spans))

    [item] = json.loads(in_a_pipe(*asked, "-o", "json"))["items"]

    assert item["outcome"] == HOSTILE
    assert HOSTILE in in_a_pipe(*asked, "-o", "csv")


def test_colours_are_for_terminals_that_want_them(
    spans: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("trace", "ns/p", "--spans", str(spans))
    colour = re.compile("\x1b\\[[0-9;]*m")
    monkeypatch.delenv("NO_COLOR", raising=False)

    assert colour.search(on_a_terminal(*asked))
    assert not colour.search(on_a_terminal(*asked, "--color", "never"))
    assert not colour.search(in_a_pipe(*asked, FORCE_COLOR="1"))
    monkeypatch.setenv("NO_COLOR", "1")
    # Bold is none: https://no-color.org.
    assert set(colour.findall(on_a_terminal(*asked))) <= {"\x1b[1m", "\x1b[0m"}


def run(*argv: str | Path, **how: Any) -> subprocess.CompletedProcess[bytes]:
    given: dict[str, Any] = {"env": environment(), "stdout": subprocess.PIPE, **how}
    return subprocess.run(
        [HAMICTL, *argv], stderr=subprocess.PIPE, timeout=PATIENCE_S, check=False, **given
    )


def test_a_terminal_without_utf_8_gets_other_glyphs(spans: Path) -> None:
    done = run("trace", "ns/p", "--spans", spans, env=environment(PYTHONIOENCODING="latin-1"))

    assert (done.returncode, done.stderr) == (ExitCode.DONE, b"")
    assert b"=" in done.stdout
    assert done.stdout.isascii()


def test_a_reader_that_left_is_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run("help", stdout=writer)
    finally:
        os.close(writer)

    assert (done.returncode, done.stderr) == (ExitCode.READER_LEFT, b"")


# Where tests run in the background of a shell, it ignores the signal for them.
TAKES_IT = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL);"
TAKES_IT += " os.execv(sys.argv[1], sys.argv[1:])"


def test_ctrl_c_ends_with_its_status_and_without_a_traceback(tmp_path: Path) -> None:
    pipe = tmp_path / "spans.jsonl"
    os.mkfifo(pipe)
    command = [sys.executable, "-c", TAKES_IT, HAMICTL, "trace", "ns/p", "--spans", pipe]
    child = subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    # It is open when the verb reads it.
    with child, pipe.open("wb"):
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=PATIENCE_S)

    assert (child.returncode, out, err) == (ExitCode.INTERRUPTED, b"", b"")
