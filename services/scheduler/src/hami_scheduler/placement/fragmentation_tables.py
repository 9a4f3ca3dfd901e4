"""Compute tables of the node policy `fragmentation`, and read an administrator's usual pods.

Tables are made in a thread: decisions go by those of before until the new ones are there. The work
is bounded (the number of a linear program's pivots is), and a thread that is late is named in the
log. The file of usual pods, in place of those that are learned, is YAML or JSON: a list of shapes,
each with its part of the arrivals in any unit (counts, percent).
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Annotated

import yaml
from hamicommon.clipping import clip
from hamicommon.domain.requests import DeviceRequest, Selection
from hamicommon.errors import InvalidRequest
from hamicommon.k8s.quantities import parse_milli
from hamicommon.placement.cluster.arrivals import Mix, PodShape
from hamicommon.placement.cluster.view import ClusterView
from hamicommon.placement.node_policies import fragmentation
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S = 1.0
LATE_S = 5.0
"""Duration of a computation after which it is logged; it usually takes some 10 ms."""


class TableMaker:
    """Compute the tables that decisions on a view need."""

    def __init__(self, cluster: ClusterView, *, late_s: float = LATE_S) -> None:
        self._policy = fragmentation(cluster)
        self._policy.defer()
        self._late_s = late_s

    async def once(self) -> None:
        """Run one round, which ends when the wanted tables are in use."""
        make = self._policy.pending()
        if make is None:
            return
        began = time.monotonic()
        making = asyncio.create_task(asyncio.to_thread(make))
        done, _ = await asyncio.wait({making}, timeout=self._late_s)
        if not done:
            logger.warning(
                "Using the previous fragmentation tables until new ones are built",
                extra={"after_s": self._late_s},
            )
        put = await making
        put()
        took_ms = round(1000 * (time.monotonic() - began), 1)
        logger.info("Updated the workload mix", extra={"took_ms": took_ms})


_MAX_BYTES = 1_000_000


class UsualPodEntry(BaseModel):
    """One shape; fields are those of a pod's limits, without the vendor's prefix."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    part: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    vendor: Annotated[str, Field(min_length=1)] = "NVIDIA"
    gpu: Annotated[int, Field(ge=1, le=1024)] = 1
    gpucores: Annotated[int, Field(ge=0, le=100)] = 0
    gpumem_mib: Annotated[int, Field(ge=0, le=2**30)] = 0
    """Memory in MiB; 0: see gpumem_percentage."""
    gpumem_percentage: Annotated[int, Field(ge=0, le=100)] = 0
    """Percent of a card's memory; 0 with gpumem_mib 0: all of it."""
    cpu: str | int | float = 0
    """CPU of the host as a Kubernetes quantity."""
    use_types: tuple[str, ...] = ()
    """Types of cards, as in nvidia.com/use-gputype."""

    def shape(self) -> PodShape:
        """Return the shape as a `PodShape`. Raises: InvalidRequest if the CPU is no quantity."""
        return PodShape(
            request=DeviceRequest(
                vendor=self.vendor,
                count=self.gpu,
                memory_mib=self.gpumem_mib,
                memory_percent=None if self.gpumem_mib else self.gpumem_percentage or 100,
                core_percent=self.gpucores,
            ),
            selection=Selection(use_types=self.use_types),
            cpu_milli=parse_milli(str(self.cpu)),
        )


_FILE = TypeAdapter(Annotated[tuple[UsualPodEntry, ...], Field(min_length=1, max_length=1000)])


def read_usual_pods(path: Path) -> Mix:
    """Read the mix from a file.

    Raises: InvalidRequest naming the file, the field and what would be right.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_MAX_BYTES + 1)
    except (OSError, UnicodeDecodeError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else "it is no UTF-8"
        raise InvalidRequest(f"usual_pods_file {path}: not readable: {why}") from exc
    if len(text) > _MAX_BYTES:
        raise InvalidRequest(f"usual_pods_file {path}: more than {_MAX_BYTES} characters")
    try:
        pods = _FILE.validate_python(yaml.safe_load(text))
        shapes = [pod.shape() for pod in pods]
    except yaml.YAMLError as exc:
        raise InvalidRequest(f"usual_pods_file {path}: not YAML") from exc
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise InvalidRequest(f"usual_pods_file {path}: {clip(where)}: {first['msg']}") from exc
    except InvalidRequest as exc:
        raise InvalidRequest(f"usual_pods_file {path}: cpu: {exc}") from exc
    return Mix(shapes, [pod.part for pod in pods])
