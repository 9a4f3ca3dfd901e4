"""Random clusters and pods in the form of `hamictl simulate --jsonl`.

`case` draws from any `random.Random`: a seeded one for the many, hypothesis' own for shrinking.
Amounts are chosen so that about half of the nodes fit: small sets of values that meet each other.
"""

from random import Random

from hamicommon.k8s.types import Json

from tests.reference.random.random_nodes import flip, node
from tests.reference.random.random_placed import make_placed_pod
from tests.reference.random.random_pods import ASKING, asking


def case(r: Random, vendors: list[str]) -> Json:
    """A cluster of one to four nodes with cards of one to three vendors, and a pod."""
    main = r.choice(vendors)
    mixed = [main]
    if flip(r, 0.25):
        mixed += [vendor for vendor in r.sample(vendors, min(2, len(vendors))) if vendor != main]
    nodes = [node(r, f"n{number}", mixed) for number in range(r.randint(1, 4))]
    pods = [
        pod
        for each in nodes
        for pod in (make_placed_pod(r, each, number) for number in range(r.randint(0, 4)))
        if pod is not None
    ]
    if pods and flip(r, 0.1):
        r.choice(pods)["status"]["phase"] = r.choice(["Succeeded", "Failed", "Pending"])
    if pods and flip(r, 0.05):
        r.choice(pods)["metadata"]["uid"] = ASKING
    return {"name": "case", "in": {"nodes": nodes, "pods": pods, "pod": asking(r, nodes, mixed)}}
