"""Sends one pod's status: the latest wins, an unchanged one is not sent, failures are repeated."""

from __future__ import annotations

import asyncio
import logging

from hamicommon.errors import Conflict, HamiError, NotFound
from hamicommon.k8s.client import KubeApi, PatchType
from hamicommon.k8s.types import Json

from kubelocal.kubelet import pod_spec

logger = logging.getLogger(__name__)

RETRY_FIRST_S = 0.2
RETRY_LAST_S = 5.0
# The server answers 409 for another uid (for good) and when others write at the same time.
MAX_CONFLICTS = 3


class StatusReporter:
    """The status of one pod on its way to the API server; `run` does the sending."""

    def __init__(self, api: KubeApi, pod: Json) -> None:
        self._api = api
        self._path = f"{pod_spec.path(pod)}/status"
        self._uid = pod_spec.uid(pod)
        self._wanted: Json | None = None
        self._sent: Json | None = None
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()

    @property
    def conditions(self) -> list[Json]:
        """The conditions wanted last."""
        return list((self._wanted or {}).get("conditions") or [])

    def set(self, status: Json) -> None:
        """Wants this status to be the pod's."""
        if status != self._wanted:
            self._wanted = status
            self._settled.clear()
            self._wake.set()

    async def flushed(self) -> None:
        """Returns when what was wanted last has been sent, or has become impossible."""
        await self._settled.wait()

    async def run(self) -> None:
        """Sends until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._send()
            if not self._wake.is_set():
                self._settled.set()

    async def _send(self) -> None:
        retry_s, conflicts = RETRY_FIRST_S, 0
        while self._wanted != self._sent:
            status = self._wanted
            # The uid keeps us from writing to another pod of the same name.
            body = {"metadata": {"uid": self._uid}, "status": status}
            try:
                await self._api.patch(self._path, body, PatchType.STRATEGIC)
                self._sent = status
            except NotFound:
                return
            except HamiError as exc:
                conflicts += isinstance(exc, Conflict)
                if conflicts > MAX_CONFLICTS:
                    return
                logger.warning("pod status not sent", extra={"path": self._path, "error": str(exc)})
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, RETRY_LAST_S)
