"""Settings that exclude cards which are cut on demand."""

from __future__ import annotations

from typing import Any

import pytest
from hami_node_agent.bootstrap.mig import require_possible
from hami_node_agent.config.settings import Settings
from hamicommon.errors import InvalidRequest


def settings(**more: Any) -> Settings:
    fields = {"node_name": "n", "nats": {"url": "nats://nobody"}, "operating_mode": "mig", **more}
    return Settings.model_validate(fields)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"mig_strategy": "mixed"}, "mig_strategy mixed offers existing MIG instances"),
        (
            {"device_list_strategy": "envvar,cdi-cri,cdi-annotations"},
            "device_list_strategy cdi-annotations, cdi-cri does not work with operating_mode mig",
        ),
    ],
)
def test_what_makes_no_sense_together_is_refused(more: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        require_possible(settings(**more))


def test_the_rest_is_possible_and_so_is_everything_in_other_modes() -> None:
    require_possible(settings(device_list_strategy="envvar,volume-mounts"))
    require_possible(settings(operating_mode="hami-core", device_list_strategy="cdi-cri"))
