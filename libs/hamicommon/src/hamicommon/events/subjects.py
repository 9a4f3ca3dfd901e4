"""Streams and subjects: where each message goes on the bus."""

from __future__ import annotations

INVENTORY_STREAM = "HAMI_INVENTORY"
GRANTS_STREAM = "HAMI_GRANTS"
REPORTS_STREAM = "HAMI_REPORTS"
USAGE_STREAM = "HAMI_USAGE"
LIMITS_STREAM = "HAMI_LIMITS"
EVENTS_STREAM = "HAMI_EVENTS"
LEDGER_STREAM = "HAMI_LEDGER"
LEDGER_CLUSTER_SUBJECT = "hami.ledger.v1.cluster"
"""Subject of what the ledger knows of the cluster as a whole."""
ADMISSION_REFUSED_SUBJECT = "hami.events.v1.admission.refused"
"""Subject of the pods that the webhook refused."""


def token_of(node: str) -> str:
    """A node's name as one subject token (dots part tokens; `_` is illegal in node names)."""
    return node.replace(".", "_")


def inventory_subject(node: str) -> str:
    """Return the subject of a node's inventory (one message kept per subject)."""
    return f"hami.inventory.v1.{token_of(node)}"


def grants_subject(node: str) -> str:
    """Return the subject of a node's grants, announced before the binding."""
    return f"hami.grants.v1.{token_of(node)}"


def snapshot_subject(node: str) -> str:
    """Return the subject of requests for all live grants of a node (no stream)."""
    return f"hami.grants.snapshot.{token_of(node)}"


def readiness_subject(node: str) -> str:
    """Return the subject of requests whether an agent can take a pod (no stream)."""
    return f"hami.agents.readiness.{token_of(node)}"


def holdings_subject(node: str) -> str:
    """Return the subject of requests for the holders of a node's devices (no stream)."""
    return f"hami.agents.holdings.{token_of(node)}"


def claims_subject(node: str) -> str:
    """Return the subject of requests for the grant of a pod's ResourceClaims."""
    return f"hami.grants.claims.{token_of(node)}"


def reports_subject(node: str) -> str:
    """Return the subject of a node's reports on its grants."""
    return f"hami.reports.v1.{token_of(node)}"


def limits_subject(node: str) -> str:
    """Return the subject of a node's findings when it checks limits from outside."""
    return f"hami.limits.v1.{token_of(node)}"


def usage_subject(node: str) -> str:
    """Return the subject of a node's usage samples."""
    return f"hami.usage.v1.{token_of(node)}"


def ledger_quota_subject(namespace: str) -> str:
    """Return the subject of a namespace's quotas with the ledger's counts on them."""
    return f"hami.ledger.v1.quota.{namespace}"


def event_subject(entity: str, verb: str) -> str:
    """Return the subject of facts of the ledger, such as `hami.events.v1.allocation.released`."""
    return f"hami.events.v1.{entity}.{verb}"
