"""Handling of a binding whose answer was lost."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hami_scheduler.extender.pod_binding import PodBinding
from hamicommon.errors import HamiError, NotFound, Unavailable
from hamicommon.grants.grant import grant_of

from tests.unit.scheduler.allocations import an_allocation


class LostAnswer:
    """Port PodApi: the pod is on its node by an earlier attempt; its annotations meet `error`."""

    def __init__(self, error: HamiError) -> None:
        self.error = error
        self.annotated: list[Mapping[str, str]] = []

    async def bind(self, *_: object, **__: object) -> None:
        raise Unavailable("no answer")

    async def get(self, namespace: str, name: str) -> dict[str, Any]:
        metadata = {"namespace": namespace, "name": name, "uid": ROW.pod_uid}
        return {"metadata": metadata, "spec": {"nodeName": ROW.node}}

    async def annotate(self, *_: object, annotations: Mapping[str, str], **__: object) -> None:
        self.annotated.append(annotations)
        raise self.error


ROW = an_allocation()


@pytest.mark.parametrize("error", [NotFound("pods p not found"), Unavailable("away")])
async def test_a_pod_that_was_on_its_node_is_bound_though_it_goes_before_its_annotations(
    error: HamiError,
) -> None:
    """Otherwise /bind would end the grant of a pod that may still run."""
    api: Any = LostAnswer(error)
    grant = grant_of(ROW, expires_at=datetime.now(UTC) + timedelta(minutes=1))

    await PodBinding(api, sign=lambda _: "signed").post(ROW, grant)

    assert len(api.annotated) == 1
