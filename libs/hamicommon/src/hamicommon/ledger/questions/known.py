"""What an empty answer means: nobody, or a name that the ledger never knew, or a time before it.

Asked only when a first page has no row, in the transaction of the question.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from hamicommon.errors import NotFound
from hamicommon.ledger.connection import Connection
from hamicommon.ledger.questions.parameters import Value

# Rows of nodes and devices stay when the hardware goes; pods are known while a grant, a decision
# of a month, or a step of theirs is kept.
_KNOWN: Mapping[str, str] = {
    "card": "SELECT EXISTS (SELECT 1 FROM devices WHERE uuid = $1)",
    "node": "SELECT EXISTS (SELECT 1 FROM nodes WHERE name = $1)"
    " OR EXISTS (SELECT 1 FROM devices WHERE node = $1)",
    "type": "SELECT EXISTS (SELECT 1 FROM devices WHERE type = $1)"
    " OR EXISTS (SELECT 1 FROM device_periods WHERE type = $1)",
    "pod_uid": "SELECT EXISTS (SELECT 1 FROM allocations WHERE pod_uid = $1)"
    " OR EXISTS (SELECT 1 FROM decisions WHERE pod_uid = $1)",
}
_POD_KNOWN = """
SELECT EXISTS (SELECT 1 FROM allocations WHERE namespace = $1 AND pod_name = $2)
    OR EXISTS (SELECT 1 FROM decisions WHERE namespace = $1 AND pod_name = $2
                  AND outcome <> 'placed' AND at > now() - interval '31 days')
"""
_TERMS = {"card": "card", "node": "node", "type": "card of type", "pod_uid": "pod of uid"}


async def check_known(connection: Connection, values: Mapping[str, Value]) -> None:
    """Of what the question names. Raises: NotFound with the first name that was never known."""
    for parameter, query in _KNOWN.items():
        name = values.get(parameter)
        if isinstance(name, str) and not await connection.fetchval(query, name):
            raise NotFound(f"the ledger knows no {_TERMS[parameter]} {name}")
    namespace, pod = values.get("namespace"), values.get("pod")
    if (
        isinstance(namespace, str)
        and isinstance(pod, str)
        and values.get("pod_uid") is None
        and not await connection.fetchval(_POD_KNOWN, namespace, pod)
    ):
        raise NotFound(f"the ledger knows no pod {namespace}/{pod}")


async def record_began_at(connection: Connection) -> datetime | None:
    """When the first card was recorded; what was before is unknown. None: no card ever was."""
    found: datetime | None = await connection.fetchval("SELECT min(began_at) FROM device_periods")
    return found
