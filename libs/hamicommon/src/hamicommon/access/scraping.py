"""Access to /metrics if its page names tenants: `get` on that path, as RBAC grants it.

The same right opens the pages of Kubernetes' own parts, so a Prometheus that reads those has it.
"""

from __future__ import annotations

from hamicommon.access.checks import Access, Right
from hamicommon.access.reviews import KubernetesAccessReviews
from hamicommon.k8s.client import KubeApi

SCRAPE = Right(verb="get", path="/metrics", role="hami-scraper")


def scrape_access(api: KubeApi, *, audience: str) -> Access:
    """Ask that API server; `audience` of the tokens, empty: the server's own."""
    return Access(KubernetesAccessReviews(api, audience=audience))
