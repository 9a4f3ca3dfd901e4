"""Log node-agents in to the bus by their pods' service-account tokens (ADR 7).

In: the bus server's question about a client. Out: the rights of the node on which, by the API
server, the token's pod runs, never of one that the client names. A token that was stolen from one
node opens that node's subjects and no other's.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hamicommon.bus.logins import LoginRequest, encode_acceptance, encode_refusal, read_question
from hamicommon.bus.permissions import agent_permissions, agent_user
from hamicommon.domain.ids import NodeName
from hamicommon.errors import HamiError, InvalidRequest

if TYPE_CHECKING:
    from hami_scheduler.adapters.kubernetes import KubernetesTokenReviews

logger = logging.getLogger(__name__)

# The agent's token is renewed every hour; its rights end with it, and it logs in again.
LIFETIME_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Bearer:
    """Owner of a token, as the API server reviews it."""

    username: str
    """User name `system:serviceaccount:NAMESPACE:NAME`."""
    node: NodeName | None
    """Node of the pod to which the token is bound; None if it is bound to none."""


class Logins:
    """Answer the bus server's questions about logins."""

    def __init__(
        self, *, reviews: KubernetesTokenReviews, agents: str, key: Ed25519PrivateKey
    ) -> None:
        """`agents`: service account of the node-agents, `NAMESPACE:NAME`."""
        self._reviews = reviews
        self._agents = f"system:serviceaccount:{agents}"
        self._key = key

    async def respond(self, subject: str, body: bytes) -> bytes:
        """Return the signed answer. Raises: InvalidRequest if the body is no question."""
        del subject
        question = read_question(body)
        try:
            node = await self._node_of(question)
        except HamiError as exc:
            logger.warning(
                "Refused the NATS login of a node-agent",
                extra={"client": question.client_name, "error": str(exc)},
            )
            return encode_refusal(question, str(exc), key=self._key, now_s=int(time.time()))
        logger.info("Accepted the NATS login of a node-agent", extra={"node": node})
        return encode_acceptance(
            question,
            name=agent_user(node),
            permissions=agent_permissions(node),
            key=self._key,
            now_s=int(time.time()),
            lifetime_s=LIFETIME_S,
        )

    async def _node_of(self, question: LoginRequest) -> NodeName:
        if not question.token:
            raise InvalidRequest("the client sent no token")
        bearer = await self._reviews.review(question.token)
        if bearer.username != self._agents:
            raise InvalidRequest(f"{bearer.username} is not the service account {self._agents}")
        if bearer.node is None:
            raise InvalidRequest("the token is bound to no pod that runs on a node")
        return bearer.node
