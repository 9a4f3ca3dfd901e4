"""Pods that come and go while something happens to the system, and the result of each."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from hamicommon.k8s.types import Json

from tests.e2e.system import System, a_pod, slice_of

ALIVE = 10
"""Number of pods that live at one time; the oldest goes when another comes."""
POLL_S = 0.2


@dataclass(slots=True)
class Churn:
    """Pods that come and go in a separate thread, with the times at which they ran."""

    system: System
    every_s: float
    created_s: dict[str, float] = field(default_factory=dict)
    ran_s: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    """The last reason of each pod why it waits."""
    asked_mib: dict[str, int] = field(default_factory=dict)
    """Requested MiB of each pod that was accepted."""
    deleted: set[str] = field(default_factory=set)
    failed: list[str] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    patient: bool = False
    """A refused creation is tried again, as a controller does; `refused` counts them."""
    refused: int = 0
    _done: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the churn inside the block."""
        threads = [threading.Thread(target=self._run_loop, args=(w,)) for w in ("come", "look")]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._done.set()
            for thread in threads:
                thread.join()
        assert not self.errors, self.errors

    def _run_loop(self, what: str) -> None:
        try:
            while not self._done.is_set():
                (self._come if what == "come" else self.look)()
                self._done.wait(self.every_s if what == "come" else POLL_S)
        except BaseException as exc:  # noqa: BLE001 - shown by the test
            self.errors.append(exc)
            self._done.set()

    def _come(self) -> None:
        number = len(self.created_s)
        name = f"churn-{number}"
        pod = a_pod(name, slice_of(1024 + number % 64, 1), command=("vgpu-probe", "--no-launch"))
        answer = self.system.create(pod)
        if self.patient and answer.status_code >= 500:
            self.refused += 1
            return
        assert answer.status_code == 201, answer.text
        self.asked_mib[name] = 1024 + number % 64
        self.created_s[name] = time.monotonic()
        living = [each for each in self.ran_s if each not in self.deleted]
        if len(living) > ALIVE:
            self.deleted.add(living[0])
            path = f"/api/v1/namespaces/default/pods/{living[0]}"
            self.system.api.request("DELETE", path, json={"gracePeriodSeconds": 1})

    def look(self) -> None:
        """Note which pods run, which failed, and why the others wait."""
        for pod in self.system.pods():
            name, status = pod["metadata"]["name"], pod["status"]
            if name not in self.created_s:
                continue
            if status.get("phase") == "Running" and _containers_run(status):
                self.ran_s.setdefault(name, time.monotonic())
            elif status.get("phase") == "Failed" and name not in self.deleted:
                self.failed.append(f"{name}: {status.get('reason')} {status.get('message')}")
            for condition in status.get("conditions") or ():
                if condition["type"] == "PodScheduled" and condition["status"] == "False":
                    self.reasons[name] = str(condition.get("message"))

    def waited_s(self, since_s: float, until_s: float) -> list[float]:
        """Seconds until the pods that came in between ran; those that never ran are left out."""
        return [
            self.ran_s[name] - at_s
            for name, at_s in self.created_s.items()
            if since_s <= at_s < until_s and name in self.ran_s
        ]

    def is_settled(self) -> bool:
        """Return whether every pod that came has run, or was deleted."""
        return all(name in self.ran_s or name in self.deleted for name in self.created_s)


def _containers_run(status: Json) -> bool:
    found = status.get("containerStatuses") or []
    return bool(found) and all("running" in each.get("state", {}) for each in found)
