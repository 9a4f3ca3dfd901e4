"""Names of pods for a shell: asked once in five seconds, and nothing where nobody answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hamictl.commands import pod_names as completion

PODS = (("default", "shown"), ("default", "shy"), ("team-a", "train"))


class Scheduler(BaseHTTPRequestHandler):
    asked = 0

    def do_GET(self) -> None:
        Scheduler.asked += 1
        items = [{"namespace": space, "pod_name": name} for space, name in PODS]
        body = json.dumps({"items": items}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBECONFIG", raising=False)


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    Scheduler.asked = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), Scheduler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("HAMI_SCHEDULER_URL", f"http://127.0.0.1:{server.server_port}")
        yield
        server.shutdown()
        thread.join()


@pytest.mark.usefixtures("scheduler")
def test_names_begin_as_typed_and_are_asked_for_once() -> None:
    assert completion.pod_names("sh") == ["shown", "shy"]
    assert completion.pod_names("pod/sho") == ["pod/shown"]
    assert completion.pod_names("team-a/") == ["team-a/train"]
    assert completion.kinds_and_pods("po") == ["pod"]
    assert completion.kinds_and_pods("pod/t") == ["pod/team-a/train"]
    assert Scheduler.asked == 1


@pytest.mark.usefixtures("scheduler")
def test_what_is_kept_is_asked_for_again_after_five_seconds_and_where_it_is_broken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    completion.pod_names("")
    [kept] = (tmp_path / "cache" / "hamictl").iterdir()
    kept.write_text("{")
    assert len(completion.pod_names("")) == len(PODS)
    monkeypatch.setattr(completion, "KEPT_S", 0.0)
    assert len(completion.pod_names("")) == len(PODS)

    assert Scheduler.asked == 3
    assert kept.stat().st_mode & 0o077 == 0


def test_where_nobody_answers_nothing_is_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert completion.pod_names("") == []
    monkeypatch.setenv("HAMI_SCHEDULER_URL", "http://127.0.0.1:1")
    assert completion.pod_names("") == []
