"""Find out whether a roll-out is finished: all replicas of some Deployments have one version.

Asked by the Job that applies what an older version could not live with. `why_unfinished` decides
from what the API server holds; `until_over` asks until there is nothing left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from hamicommon.errors import Unavailable
from hamicommon.k8s.client import KubeApi
from hamicommon.k8s.types import Json

logger = logging.getLogger(__name__)

POLL_S = 3.0
LONGEST_S = 3600.0


def why_unfinished(deployment: Json, pods: Sequence[Json], image: str) -> str | None:
    """Return why the Deployment does not run only `image`'s version; None if it does.

    Our container of `hami-NAME` is `NAME`. `pods` are those of its namespace; one that is still
    ending counts, since it still serves.
    """
    name, wanted = deployment["metadata"]["name"], deployment["spec"].get("replicas", 1)
    container = name.removeprefix("hami-")
    template_image = _image_of(deployment["spec"]["template"], container)
    if template_image is None:
        return f"{name} has no container {container}"
    if not _same_version(template_image, image):
        return f"{name} has image {template_image}, and this migration has {image}"
    status = deployment.get("status", {})
    if status.get("observedGeneration", 0) < deployment["metadata"]["generation"]:
        return f"{name} has not picked up its last change yet"
    ready = min(status.get(key, 0) for key in ("updatedReplicas", "availableReplicas"))
    if ready < wanted or status.get("replicas", 0) != wanted:
        return f"{name} has {ready} of {wanted} replicas of this version"
    labels = deployment["spec"]["selector"]["matchLabels"].items()
    for pod in pods:
        if not labels <= (pod["metadata"].get("labels") or {}).items():
            continue
        over = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        pod_image = _image_of(pod, container)
        if not over and (pod_image is None or not _same_version(pod_image, image)):
            return f"{pod['metadata']['name']} of an older version is still ending"
    return None


async def until_over(api: KubeApi, namespace: str, deployments: Sequence[str], pod: str) -> None:
    """Wait until all Deployments run the version of the pod `pod`, in which this code runs.

    An API server that is unavailable or too slow in the meantime is asked again.
    Raises: Unavailable when that takes longer than an hour, NotFound.
    """
    logged = ""
    try:
        async with asyncio.timeout(LONGEST_S):
            while why := await _asked_why_not(api, namespace, deployments, pod):
                if why != logged:
                    logger.info("Waiting for the rollout: %s", why)
                    logged = why
                await asyncio.sleep(POLL_S)
    except TimeoutError as exc:
        raise Unavailable(f"the roll-out has not finished after {LONGEST_S:g} s: {logged}") from exc


async def _asked_why_not(
    api: KubeApi, namespace: str, deployments: Sequence[str], pod: str
) -> str | None:
    try:
        return await _why_not(api, namespace, deployments, pod)
    except Unavailable as exc:
        return f"the API server can't be asked: {exc}"


async def _why_not(
    api: KubeApi, namespace: str, deployments: Sequence[str], pod: str
) -> str | None:
    pods = (await api.get(f"/api/v1/namespaces/{namespace}/pods"))["items"]
    own = next((each for each in pods if each["metadata"]["name"] == pod), None)
    if own is None:
        raise Unavailable(f"the API server has no pod {namespace}/{pod}")
    # Our container is the first: what a cluster injects comes after it.
    image = own["spec"]["containers"][0]["image"]
    for name in deployments:
        found = await api.get(f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}")
        if why := why_unfinished(found, pods, image):
            return why
    return None


def _image_of(template: Json, container: str) -> str | None:
    """Return the image of this container.

    Others (kube-scheduler, injected ones) have versions of their own.
    """
    containers = template["spec"]["containers"]
    return next((each["image"] for each in containers if each["name"] == container), None)


def _same_version(one: str, other: str) -> bool:
    """Return whether two images have the same tag; a digest without a tag counts as the same."""
    tags = {_tag(one), _tag(other)}
    return one == other or "" in tags or len(tags) == 1


def _tag(image: str) -> str:
    return image.partition("@")[0].rpartition("/")[2].partition(":")[2]
