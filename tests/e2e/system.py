"""A running system as the end-to-end cases see it: only kubectl's API, SQL and HTTP."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx
import redis
from hamicommon.admission.registration import IGNORE_LABEL, IGNORE_VALUE
from hamicommon.k8s.types import Json
from hamicommon.ledger.invariants import INVARIANTS as INVARIANTS

from tests import waiting
from tests.servers import psql

T = TypeVar("T")

READY_TIMEOUT_S = 180.0
_POLL_S = 0.1
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """The local system that `hamictl up --json` described, with the means to use it."""

    described: Mapping[str, Any]
    folder: Path
    api: httpx.Client

    @property
    def scheduler_url(self) -> str:
        """The extender."""
        return str(self.described["scheduler_url"])

    def get(self, path: str) -> Json:
        """Read from the API server."""
        answer = self.api.get(path)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def create(self, pod: Json) -> httpx.Response:
        """Create a pod; the answer may be a refusal."""
        return self.api.post("/api/v1/namespaces/default/pods", json=pod)

    @contextmanager
    def past_admission(self) -> Iterator[None]:
        """Within the block, pods of the default namespace don't come to the webhook: an operator
        leaves the namespace out."""
        self._leave_out(IGNORE_VALUE)
        try:
            yield
        finally:
            self._leave_out(None)

    def _leave_out(self, label: str | None) -> None:
        """Label the namespace, and wait until the API server applies it."""
        probe = a_pod("probe", slice_of(1))
        probe["spec"]["containers"][0]["securityContext"] = {"privileged": True}
        answer = self.api.patch(
            "/api/v1/namespaces/default",
            json={"metadata": {"labels": {IGNORE_LABEL: label}}},
            headers={"content-type": "application/merge-patch+json"},
        )
        assert answer.status_code == 200, answer.text
        wanted = 201 if label else 403

        def is_known() -> bool:
            asked = self.api.post("/api/v1/namespaces/default/pods?dryRun=All", json=probe)
            return asked.status_code == wanted

        wait(is_known, "the API server to go by the namespace's label")

    def run(self, *pods: Json) -> list[Json]:
        """Create pods and wait until all of them run."""
        for pod in pods:
            answer = self.create(pod)
            assert answer.status_code == 201, answer.text
        return [self.wait_for_phase(pod["metadata"]["name"], "Running") for pod in pods]

    def pod(self, name: str) -> Json | None:
        """The pod, or None when it is gone."""
        answer = self.api.get(f"/api/v1/namespaces/default/pods/{name}")
        return None if answer.status_code == 404 else dict(answer.json())

    def wait_for_phase(self, name: str, phase: str, *, timeout_s: float | None = None) -> Json:
        """Wait for `status.phase`, and for Running also until every container runs."""

        def read_reached_pod() -> Json | None:
            pod = self.pod(name)
            assert pod is not None, f"{name} is gone"
            found = pod["status"].get("phase")
            if phase == "Running" and found in ("Failed", "Succeeded"):
                raise AssertionError(f"{name} ended: {pod['status']}")
            states = [s.get("state", {}) for s in pod["status"].get("containerStatuses") or []]
            running = phase != "Running" or all("running" in state for state in states)
            return pod if found == phase and running else None

        return wait(
            read_reached_pod, f"{name} to be {phase}", timeout_s=timeout_s, why=self._why(name)
        )

    def _why(self, name: str) -> Callable[[], str]:
        return lambda: json.dumps((self.pod(name) or {}).get("status"))

    def wait_for_reason(self, name: str) -> str:
        """Wait for the reason that the pod's condition gives for not being scheduled."""

        def reason() -> str | None:
            for condition in (self.pod(name) or {"status": {}})["status"].get("conditions") or []:
                if condition["type"] == "PodScheduled" and condition["status"] == "False":
                    return str(condition.get("message") or "")
            return None

        return wait(reason, f"the reason why {name} waits")

    def delete(self, *names: str, timeout_s: float | None = None) -> None:
        """Delete pods and wait until they are gone."""
        for name in names:
            self.api.request(
                "DELETE",
                f"/api/v1/namespaces/default/pods/{name}",
                json={"gracePeriodSeconds": 1},
            )
        for name in names:
            wait(
                lambda name=name: self.pod(name) is None,
                f"{name} to be gone",
                timeout_s=timeout_s,
            )

    def force_delete(self, name: str) -> None:
        """Remove the object immediately, as `kubectl delete --force --grace-period=0` does."""
        self.api.request(
            "DELETE", f"/api/v1/namespaces/default/pods/{name}", json={"gracePeriodSeconds": 0}
        )

    def delete_all(self) -> None:
        """Delete every pod and wait until the ledger holds nothing."""
        self.delete(*(pod["metadata"]["name"] for pod in self.pods()))
        wait(
            lambda: self.sql("SELECT count(*) FROM allocations WHERE ended_at IS NULL") == "0",
            "the ledger to be empty",
            why=lambda: self.sql("SELECT pod_name, state, reason FROM allocations"),
        )

    def pods(self) -> list[Json]:
        """All pods of the default namespace."""
        return list(self.get("/api/v1/namespaces/default/pods")["items"])

    def events(self, name: str) -> list[tuple[str, str]]:
        """(reason, message) of a pod's events."""
        found = self.get("/api/v1/namespaces/default/events")["items"]
        return [
            (event["reason"], event.get("message", ""))
            for event in found
            if event["involvedObject"].get("name") == name
        ]

    def sql(self, query: str) -> str:
        """Ask the ledger."""
        return psql(str(self.described["postgres_dsn"]), query)

    def pid_of(self, service: str) -> int | None:
        """Return the pid of a service's process; None while it is not ready."""
        state = json.loads((self.folder / "state.json").read_text())
        entry = state["services"].get(service, {})
        return int(entry["pid"]) if entry.get("phase") == "ready" and "pid" in entry else None

    def redis(self) -> redis.Redis:
        """A client of the locks' server."""
        return redis.Redis.from_url(str(self.described["redis_url"]))

    def log(self, pod: Json, container: str) -> list[Json]:
        """The JSON lines that a container has printed."""
        pattern = f"nodes/*/kubelet/pods/{pod['metadata']['uid']}/{container}.log"
        paths = list(self.folder.glob(pattern))
        lines = paths[0].read_text().splitlines() if paths else []
        return [json.loads(line) for line in lines if line.startswith("{")]

    def wait_for_log(self, pod: Json, container: str, event: str) -> list[Json]:
        """Wait until the container has printed this event; return all lines until then."""

        def read_lines() -> list[Json] | None:
            lines = self.log(pod, container)
            return lines if any(line["event"] == event for line in lines) else None

        return wait(
            read_lines, f"{container} to print {event}", why=lambda: str(self.log(pod, container))
        )

    def spans_since(self, admission: str) -> set[str]:
        """Names of the spans of this trace and of all traces that are linked to it."""
        recorded = [
            json.loads(line)
            for path in (self.folder / "traces").glob("*.jsonl")
            for line in path.read_text().splitlines()
        ]
        linked = {
            span["context"]["trace_id"]
            for span in recorded
            if any(admission in link["context"]["trace_id"] for link in span["links"])
        }
        whole = linked | {f"0x{admission}"}
        return {span["name"] for span in recorded if span["context"]["trace_id"] in whole}

    def check_invariants(self) -> None:
        """Assert the invariants that hold at every instant."""
        # One psql for all; the name of one that is broken is worth another.
        if psql(str(self.described["postgres_dsn"]), *INVARIANTS.values()):
            for name, query in INVARIANTS.items():
                assert self.sql(query) == "", name
        assert self.refused_on_the_bus() == [], "services have the rights that they need"

    def refused_on_the_bus(self) -> list[str]:
        """Return the bus's log lines of refused calls: each service has its rights of a cluster."""
        logs = self.folder.glob("logs/nats.log")
        lines = (line for log in logs for line in log.read_text(errors="replace").splitlines())
        return [line for line in lines if " Violation - " in line]

    def ledger_difference(self) -> str | None:
        """None if ledger = pods, otherwise the differences."""
        held = self.sql(
            "SELECT pod_uid || ' ' || node || ' ' || state FROM allocations"
            " WHERE ended_at IS NULL ORDER BY 1"
        ).splitlines()
        live = sorted(
            f"{pod['metadata']['uid']} {pod['spec']['nodeName']} allocated"
            for pod in self.pods()
            if pod["spec"].get("nodeName") and pod["status"].get("phase") == "Running"
        )
        return None if held == live else f"ledger {held}, pods {live}"


def wait(
    check: Callable[[], T | None],
    what: str,
    *,
    timeout_s: float | None = None,
    why: Callable[[], str] = lambda: "",
) -> T:
    """Wait as `tests/waiting.py` does, with longer intervals: each check asks a server."""
    return waiting.wait(check, what, within_s=timeout_s, every_s=_POLL_S, why=why)


def environment_of(folder: Path) -> dict[str, str]:
    """Return the environment of a user with a local system in `folder`."""
    own = {"HAMI_FOLDER": str(folder), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    return own | {"SSL_CERT_FILE": os.environ["SSL_CERT_FILE"]}


def hamictl(
    folder: Path,
    *arguments: str,
    timeout_s: float = READY_TIMEOUT_S,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run the command as a user does."""
    done = subprocess.run(
        [str(Path(sys.executable).parent / "hamictl"), *arguments],
        env=environment_of(folder) | dict(environment or {}),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"hamictl {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout


def a_pod(
    name: str,
    limits: Mapping[str, object] | None = None,
    *,
    command: Sequence[str] = ("vgpu-probe",),
    containers: Mapping[str, Mapping[str, object]] | None = None,
    annotations: Mapping[str, str] | None = None,
    init: Mapping[str, object] | None = None,
) -> Json:
    """A pod of vgpu-probes; `limits` are of the one container, or `containers` by name."""
    parts = containers or {"cuda": limits or {}}

    def container(container_name: str, wanted: Mapping[str, object], argv: Sequence[str]) -> Json:
        return {
            "name": container_name,
            "image": "hami/vgpu-probe",
            "command": list(argv),
            "resources": {"limits": {key: str(value) for key, value in wanted.items()}},
        }

    spec: Json = {
        "containers": [container(each, wanted, command) for each, wanted in parts.items()],
        "terminationGracePeriodSeconds": 2,
    }
    if init is not None:
        spec["initContainers"] = [container("init", init, ("vgpu-probe", "--once"))]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "spec": spec,
    }


def slice_of(memory_mib: int, core_percent: int = 0, count: int = 1) -> dict[str, object]:
    """Limits of a slice."""
    limits: dict[str, object] = {"nvidia.com/gpu": count, "nvidia.com/gpumem": memory_mib}
    return limits | ({"nvidia.com/gpucores": core_percent} if core_percent else {})
