"""Wrong settings of users, and the text of hamictl's sentence on each."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from hamilocal.servers.certificates import Authority, write_certificate
from hamilocal.supervisor.ports import free_port

from tests.integration.k8s.installed import Installed


class _Gateway(BaseHTTPRequestHandler):
    """Answers as an intermediate proxy that can't reach its upstream."""

    def do_GET(self) -> None:
        self.send_response(int(self.path.strip("/").split("/")[0] or "502"))
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(b"<html>Bad gateway</html>")

    def log_message(self, *_args: object) -> None:
        """Nothing on the terminal."""


@contextmanager
def gateway() -> Iterator[str]:
    """URL of a server that answers with the status in the first part of the path."""
    server = HTTPServer(("127.0.0.1", 0), _Gateway)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def mistakes_of(
    installed: Installed, gateway: str, tmp_path: Path
) -> dict[str, tuple[dict[str, Any], str]]:
    """Return the settings of each mistake, and the text in its sentence."""
    other = tmp_path / "other.crt"
    authority = Authority.new("another authority")
    write_certificate(other, authority.certificate)
    scheduler, nobody = installed.scheduler, free_port()
    no_file, text = tmp_path / "missing", tmp_path / "text"
    text.write_text("no certificate")
    plain = {"HAMI_SCHEDULER_TOKEN": None}
    return {
        "no CA": ({"HAMI_SCHEDULER_CA_FILE": None}, "set HAMI_SCHEDULER_CA_FILE"),
        "wrong CA": ({"HAMI_SCHEDULER_CA_FILE": other}, f"HAMI_SCHEDULER_CA_FILE={other}"),
        "CA missing": (
            {"HAMI_SCHEDULER_CA_FILE": no_file},
            f"HAMI_SCHEDULER_CA_FILE={no_file}: No such file or directory",
        ),
        "CA is a folder": ({"HAMI_SCHEDULER_CA_FILE": tmp_path}, "Is a directory"),
        "CA is not PEM": ({"HAMI_SCHEDULER_CA_FILE": text}, "is not a certificate in PEM form"),
        "another name": (
            {"HAMI_SCHEDULER_URL": scheduler.operator.replace("localhost", "127.0.0.2")},
            "is not for 127.0.0.2: use localhost for a forwarded port",
        ),
        "a name of the cluster": (
            {"HAMI_SCHEDULER_URL": "https://hami-scheduler.hami-system.svc:9444"},
            "in the cluster only",
        ),
        "away": (
            {"HAMI_SCHEDULER_URL": f"https://localhost:{nobody}"},
            "check that `kubectl port-forward` still runs",
        ),
        "plain to TLS": (
            {"HAMI_SCHEDULER_URL": scheduler.operator.replace("https", "http")} | plain,
            "use https:// if the port has TLS",
        ),
        "a token over plain HTTP": (
            {"HAMI_SCHEDULER_URL": scheduler.probe},
            "a token is sent over https:// only",
        ),
        "TLS to plain": (
            {"HAMI_SCHEDULER_URL": scheduler.probe.replace("http", "https")},
            "the port does not use TLS",
        ),
        "another port of ours": (
            {"HAMI_SCHEDULER_URL": scheduler.probe} | plain,
            "answers 404 with application/json, unlike hami-scheduler: ",
        ),
        "a gateway": (
            {"HAMI_SCHEDULER_URL": f"{gateway}/502"} | plain,
            "answers 502 with text/html, unlike hami-scheduler: ",
        ),
        "a login page": (
            {"HAMI_SCHEDULER_URL": f"{gateway}/200"} | plain,
            "answers 200 with text/html, unlike hami-scheduler: ",
        ),
        "a proxy that is away": (
            {"HTTPS_PROXY": f"http://127.0.0.1:{nobody}"},
            "(called through HTTPS_PROXY; NO_PROXY=localhost bypasses it)",
        ),
        "no address": ({"HAMI_SCHEDULER_URL": "localhost:9444"}, "use http(s)://host:port"),
        "a bad port": ({"HAMI_SCHEDULER_URL": "https://x:99999"}, "use http(s)://host:port"),
        "nothing set": ({"HAMI_SCHEDULER_URL": None}, "the address of the scheduler is unknown"),
        "two tokens": ({"HAMI_SCHEDULER_TOKEN_FILE": text}, "are both set: unset one"),
        "token file missing": (
            {"HAMI_SCHEDULER_TOKEN": None, "HAMI_SCHEDULER_TOKEN_FILE": no_file},
            f"HAMI_SCHEDULER_TOKEN_FILE={no_file}: No such file or directory",
        ),
        "a token of two parts": (
            {"HAMI_SCHEDULER_TOKEN": "error: forbidden"},
            "is not a token",
        ),
        "a token with letters of ours": ({"HAMI_SCHEDULER_TOKEN": "gr\u00fcn"}, "is not a token"),
    }
