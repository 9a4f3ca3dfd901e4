"""The token that a page of metrics wants, by a real API server."""

from pathlib import Path

import pytest
import yaml
from hamicommon.access.checks import NotAllowed, Unauthenticated
from hamicommon.access.reviews import SCRAPE, scrape_access
from hamicommon.k8s.client import open_kube_api

from tests.contract.policies.guarded import PLURALS, TENANTS, Guarded

COMPONENT = Path(__file__).parents[3] / "k8s" / "components" / "scrape-tokens" / "access.yaml"


@pytest.fixture(scope="module")
def tokens(guarded: Guarded) -> dict[str, str]:
    """Tokens of an account with the manifests' role for scrapers, and of one without."""
    [role] = [
        each
        for each in yaml.safe_load_all(COMPONENT.read_text())
        if each["metadata"]["name"] == SCRAPE.role
    ]
    guarded.make(PLURALS["ClusterRole"], role)
    found = {}
    for name in ("scraper", "curious"):
        user = guarded.account(TENANTS, name)
        found[name] = dict(user.headers)["authorization"].removeprefix("Bearer ")
    guarded.bind(SCRAPE.role, "ServiceAccount", f"{TENANTS}:scraper")
    return found


async def test_the_role_of_scrapers_opens_the_page(
    guarded: Guarded, tokens: dict[str, str]
) -> None:
    async with open_kube_api(guarded.kubeconfig) as api:
        access = scrape_access(api, audience="")

        caller = await access.check(tokens["scraper"], SCRAPE)
        assert caller.username == f"system:serviceaccount:{TENANTS}:scraper"


async def test_no_other_account_and_no_token_of_another_audience_opens_it(
    guarded: Guarded, tokens: dict[str, str]
) -> None:
    async with open_kube_api(guarded.kubeconfig) as api:
        access = scrape_access(api, audience="")
        with pytest.raises(NotAllowed, match="curious may not get /metrics"):
            await access.check(tokens["curious"], SCRAPE)
        with pytest.raises(Unauthenticated):
            await access.check("forged", SCRAPE)
        # The API server's own audience, as a Prometheus shows that scrapes Kubernetes' parts.
        with pytest.raises(Unauthenticated, match="its audience must be hami-metrics"):
            await scrape_access(api, audience="hami-metrics").check(tokens["scraper"], SCRAPE)
