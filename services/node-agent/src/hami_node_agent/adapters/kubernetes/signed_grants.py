"""Grants in `hami.io/grant` of this node's pods: those that our scheduler signed for us count.

Of a pod only the newest attempt: an annotation that is older than one that we saw is worth nothing.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from hamicommon.errors import InvalidRequest
from hamicommon.grants.grant import verify
from hamicommon.k8s.types import Json
from nacl.signing import VerifyKey

from hami_node_agent.adapters.kubernetes.pod_fields import is_terminal, signed_text
from hami_node_agent.grants.book import NodeGrant
from hami_node_agent.grants.feed import node_grant

logger = logging.getLogger(__name__)


class SignedGrants:
    """Reads and verifies them."""

    def __init__(self, node: str, key: VerifyKey | None) -> None:
        """`key`: the scheduler's; without it no annotation counts."""
        self._node = node
        self._key = key
        self._tokens: dict[str, int] = {}
        """By pod: the highest that a signed grant had while we watched."""

    @property
    def readable(self) -> bool:
        """False where no key was given."""
        return self._key is not None

    def forget(self, pod_uid: str) -> None:
        """The pod is gone."""
        self._tokens.pop(pod_uid, None)

    def of(self, pod: Json) -> NodeGrant | None:
        """The grant in the pod's annotation; None where it has none that counts."""
        text, uid = signed_text(pod), pod["metadata"]["uid"]
        if self._key is None or not text or is_terminal(pod):
            return None
        try:
            grant = verify(text, self._key, now=datetime.now(UTC))
        except InvalidRequest as exc:
            logger.warning(
                "signed grant refused", extra={"pod": pod["metadata"]["name"], "error": str(exc)}
            )
            return None
        # A signed grant copied to another pod, or from another node, is worth nothing.
        if grant.pod_uid != uid or grant.node != self._node:
            logger.warning("signed grant is another pod's", extra={"pod": pod["metadata"]["name"]})
            return None
        if grant.token < self._tokens.get(uid, grant.token):
            logger.warning("signed grant is older", extra={"pod": pod["metadata"]["name"]})
            return None
        self._tokens[uid] = grant.token
        return node_grant(grant)
