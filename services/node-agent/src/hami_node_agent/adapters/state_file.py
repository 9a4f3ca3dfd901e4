"""Save the agent's state as a JSON file, atomically and flushed to disk.

A file that can't be read is kept as `.damaged` and the agent starts without it: the kubelet's
checkpoint and the ledger know enough to continue (`allocation/prestart.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
from hamicommon.domain.ids import GpuUuid, PodUid
from hamicommon.errors import InvalidRequest, Unavailable
from hamicommon.k8s.mig import MigSlice
from pydantic import TypeAdapter

from hami_node_agent.adapters.host.durable import replace_file
from hami_node_agent.devices.mig_partition import OwnInstance
from hami_node_agent.grants.records import AgentState, PendingReport, Record

logger = logging.getLogger(__name__)

VERSION = 1
_RECORDS = TypeAdapter(list[Record])


class StateFile:
    """State file `<state_dir>/state.json`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: dict[str, tuple[Record, str]] = {}
        """By nonce: all but one record of a write are those of the write before."""

    def load(self) -> AgentState:
        """Return the saved state, or an empty one."""
        try:
            return decode(self._path.read_bytes())
        except FileNotFoundError:
            return AgentState()
        except InvalidRequest as exc:
            damaged = self._path.with_suffix(".damaged")
            self._path.replace(damaged)
            logger.error(
                "Starting without the state file because it is damaged",
                extra={"error": str(exc), "kept_as": str(damaged)},
            )
            return AgentState()

    def save(self, state: AgentState) -> None:
        """Replace the file. Raises: Unavailable."""
        try:
            replace_file(self._path, self._encode(state))
        except OSError as exc:
            raise Unavailable(f"{self._path} can't be written: {exc}") from exc

    def _encode(self, state: AgentState) -> bytes:
        before, self._written = self._written, {}
        for nonce, record in state.records.items():
            known = before.get(nonce)
            same = known is not None and known[0] is record
            self._written[nonce] = known if same and known else (record, _record_json(record))
        return _document(state, (text for _, text in self._written.values()))


def encode(state: AgentState) -> bytes:
    """Encode the state."""
    return _document(state, map(_record_json, state.records.values()))


def _document(state: AgentState, records: Iterable[str]) -> bytes:
    return orjson.dumps(
        {
            "version": VERSION,
            "records": [orjson.Fragment(record) for record in records],
            "reports": [{"id": report.report_id, "body": report.body} for report in state.reports],
            "least_tokens": dict(state.least_tokens),
            "instances": [_instance_json(each) for each in state.instances],
        }
    )


def _record_json(record: Record) -> str:
    # Agents of the version before know no sidecars; of a record it only counts who stays.
    known = replace(record, role="app") if record.role == "sidecar" else record
    # As text, because it is kept: orjson's bytes hold on to the buffer that they were written into,
    # 4 to 8 KiB for a record of some hundred bytes.
    return orjson.dumps(known, default=_plain).decode()


def _plain(value: object) -> object:
    if isinstance(value, frozenset):
        return sorted(value)
    raise TypeError(type(value).__name__)


def _instance_json(instance: OwnInstance) -> dict[str, Any]:
    return {
        "card": instance.card,
        "profile": instance.part.profile,
        "start": instance.part.start,
        "size": instance.part.size,
        "uuid": instance.uuid,
        "gpu_instance": instance.gpu_instance,
        "compute_instance": instance.compute_instance,
    }


def decode(content: bytes) -> AgentState:
    """Decode a state of `encode`. Raises: InvalidRequest."""
    try:
        document = orjson.loads(content)
        if document["version"] != VERSION:
            raise InvalidRequest(f"state version {document['version']}, expected {VERSION}")
        # An older agent gave provisional answers, without limits, to pods that it did not know.
        kept = [item for item in document["records"] if not item.get("provisional")]
        records = _RECORDS.validate_python(kept)
        # Files of agents before these were kept have none.
        tokens = {PodUid(uid): int(n) for uid, n in document.get("least_tokens", {}).items()}
        reports = tuple(
            PendingReport(report_id=item["id"], body=item["body"]) for item in document["reports"]
        )
        instances = tuple(_instance(item) for item in document.get("instances", []))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as exc:
        raise InvalidRequest(f"not a state file: {type(exc).__name__}: {exc}") from exc
    found = AgentState(reports=reports, instances=instances)
    return found.with_records(records).with_least_tokens(tokens)


def _instance(item: dict[str, Any]) -> OwnInstance:
    return OwnInstance(
        card=GpuUuid(item["card"]),
        part=MigSlice(profile=item["profile"], start=item["start"], size=item["size"]),
        uuid=item["uuid"],
        gpu_instance=item["gpu_instance"],
        compute_instance=item["compute_instance"],
    )
