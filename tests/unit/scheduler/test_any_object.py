"""Any content of nodes, pods and quotas: the reader reports the error, or continues."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from hami_scheduler.ledger.node_lock_annotation import holder_of
from hami_scheduler.ledger.quota import quota_limits
from hami_scheduler.ledger.state_machine import facts_of
from hami_scheduler.placement.waiting_pods import scheduled_verdict
from hami_scheduler.watch.node_annotations import lives, looks, read_annotations
from hami_scheduler.watch.trim import trimmed_node, trimmed_pod
from hamicommon.device_config import DeviceConfig
from hamicommon.domain.requests import Policy
from hamicommon.errors import InvalidRequest
from hamicommon.grants.grant import verify
from hamicommon.k8s import annotations
from hamicommon.vendors.pod_request import pod_request, wants_devices
from hamicommon.vendors.registry import Vendors
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey

NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)
VENDORS = Vendors.from_config(DeviceConfig(), enable_ascend=True)
KEY = SigningKey.generate().verify_key
CARD: dict[str, Any] = {"id": "GPU-0", "count": 10, "devmem": 40960, "devcore": 100, "type": "A"}


def _texts(names: Any) -> set[str]:
    """The used names of a vendor's annotations or resources."""
    found = (getattr(names, one.name) for one in fields(names))
    return {value for value in found if isinstance(value, str) and value}


_own_keys = sorted(
    {value for value in vars(annotations).values() if isinstance(value, str) and "/" in value}
    | {value for vendor in VENDORS for value in _texts(vendor.keys)}
)
_resources = sorted({value for vendor in VENDORS for value in _texts(vendor.resources)})
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*CARD, "index", "numa", "mode", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)
_cards = st.lists(
    st.fixed_dictionaries(
        {}, optional={name: _json | st.just(value) for name, value in CARD.items()}
    ),
    max_size=3,
)
_values = st.one_of(
    st.text(max_size=30),
    _json.map(json.dumps),
    _cards.map(json.dumps),
    st.lists(
        st.sampled_from(
            [
                "GPU-0",
                ",",
                ":",
                ";",
                "NVIDIA",
                "4096",
                "-1",
                "1e9",
                "true",
                "hami-core",
                "Requesting_",
            ]
        ),
        max_size=12,
    ).map("".join),
)
_written = st.dictionaries(st.sampled_from(_own_keys), _values, max_size=4)
_amounts = st.sampled_from(["0", "1", "4096", "1k", "0.5", "1500m", "8E", "1e30", "9" * 25, "-1"])
_limits = st.dictionaries(st.sampled_from(_resources), _amounts, max_size=4)


@given(_written, _limits, _limits)
def test_a_node_shows_cards_or_what_is_wrong(
    written: dict[str, str], capacity: dict[str, str], allocatable: dict[str, str]
) -> None:
    node = trimmed_node(
        {
            "metadata": {"name": "n", "annotations": written},
            "status": {
                "capacity": capacity,
                "allocatable": allocatable,
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
    )

    found = read_annotations(node, VENDORS, NOW)

    looks(node)
    lives(node, VENDORS)
    annotations.decode_cordon(written.get(annotations.DEVICE_CORDON, ""))
    assert all(why for why in found.malformed.values())
    assert all(card.memory_mib >= 0 and card.slots >= 0 for card in found.devices)


@given(_written, _limits)
def test_a_pod_asks_for_something_or_is_an_invalid_request(
    written: dict[str, str], limits: dict[str, str]
) -> None:
    container = {"name": "c", "resources": {"limits": limits, "requests": limits}}
    pod = trimmed_pod(
        {
            "metadata": {"name": "p", "namespace": "d", "uid": "u", "annotations": written},
            "spec": {"containers": [container], "initContainers": [container]},
            "status": {"phase": "Pending"},
        }
    )

    facts_of(pod)
    scheduled_verdict(pod)
    with suppress(InvalidRequest):
        request = pod_request(dict(pod), VENDORS, Policy())
        assert wants_devices(dict(pod), VENDORS) or not request.wants_devices


@given(_values)
def test_a_signed_grant_of_anybody_else_is_no_grant(text: str) -> None:
    with suppress(InvalidRequest):
        verify(text, KEY, now=NOW)
        raise AssertionError(f"{text!r} is believed")


@given(st.sampled_from(_own_keys), _values)
def test_a_lock_names_its_holder_or_is_no_lock(key: str, value: str) -> None:
    with suppress(InvalidRequest):
        holder_of(key, value, NOW)


@given(_limits)
def test_a_quota_limits_by_whole_numbers(limits: dict[str, str]) -> None:
    hard = {f"limits.{name}": amount for name, amount in limits.items()}

    found = quota_limits({"spec": {"hard": hard}}, VENDORS)

    assert all(limit >= 0 for limit in found.limits.values())
