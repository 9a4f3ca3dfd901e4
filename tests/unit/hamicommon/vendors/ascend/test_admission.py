"""Admission of a request for Ascend chips (protocol 1.16)."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hamicommon.device_config import DeviceConfig, VnpusConfig
from hamicommon.errors import InvalidRequest
from hamicommon.vendors.ascend import Ascend

from tests.unit.hamicommon.vendors.asking import container

CONFIG = DeviceConfig().vnpus
assert CONFIG is not None
CHIPS = {chip.common_word: chip for chip in CONFIG.configs}


def vendor(name: str, **changed: Any) -> Ascend:
    chip = replace(CHIPS[name], **changed)
    others = tuple(other for other in CHIPS.values() if other.common_word != name)
    return Ascend(chip, VnpusConfig(configs=(chip, *others)))


def admit_container(
    name: str,
    limits: dict[str, Any],
    requests: dict[str, Any] | None = None,
    *,
    soft: bool = False,
    **changed: Any,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Limits and requests after admission, without the domain; the second time changes nothing."""

    def full(amounts: dict[str, Any] | None) -> dict[str, Any] | None:
        return amounts and {
            f"huawei.com/{name}{suffix}": value for suffix, value in amounts.items()
        }

    asked = container(full(limits), full(requests))
    pod = {"metadata": {"annotations": MODE if soft else {}}, "spec": {}}
    chip = vendor(name, **changed)
    assert chip.mutate(asked, pod).wants
    once = deepcopy(asked)
    assert chip.mutate(asked, pod).wants
    assert asked == once
    resources = once["resources"]
    prefix = len(f"huawei.com/{name}")
    return tuple(
        {resource[prefix:]: amount for resource, amount in (resources.get(part) or {}).items()}
        for part in ("limits", "requests")
    )


MODE = {"huawei.com/vnpu-mode": "hami-core"}


@pytest.mark.parametrize(
    ("name", "asked", "granted"),
    [
        ("Ascend910A", None, 32768),
        ("Ascend910A", 0, 2184),
        ("Ascend910A", 2000, 2184),
        ("Ascend910A", 2184, 2184),
        ("Ascend910A", 2185, 4369),
        ("Ascend910A", 8739, 17476),
        ("Ascend910A", 17477, 32768),
        ("Ascend910B2", 16385, 32768),
        ("Ascend910B2", 32769, 65536),
        ("Ascend910B4", 2000, 8192),
        ("Ascend310P", 2000, 3072),
        ("Ascend310P", 12289, 21527),
        ("Ascend310P", 24576, 21527),
        ("Ascend310P", None, 21527),
    ],
)
def test_memory_is_rounded_up_to_a_template_or_the_whole_chip(name, asked, granted) -> None:
    limits = {"": 1} | ({} if asked is None else {"-memory": asked})

    assert admit_container(name, limits) == (
        {"": 1, "-memory": str(granted)},
        {"-memory": str(granted)},
    )


def test_memory_in_requests_alone_counts_as_none() -> None:
    limits, requests = admit_container("Ascend910A", {"": 1}, {"-memory": 2000})

    assert (limits["-memory"], requests["-memory"]) == ("32768", "32768")


@pytest.mark.parametrize(
    ("limits", "requests", "count"),
    [
        ({"": 1}, None, "2"),
        ({"": 2}, None, 2),
        ({"": "6"}, {"": "6"}, "6"),
        ({"": 1}, {"": 1}, "2"),
        ({"": 1, "-memory": 16384}, None, "2"),
    ],
)
def test_chips_of_a_module_are_asked_for_in_pairs(limits, requests, count) -> None:
    after, after_requests = admit_container("Ascend910C", limits, requests)

    assert after[""] == count
    assert after_requests.get("") == (count if requests else None)
    assert after["-memory"] == str(limits.get("-memory", 65536))


@pytest.mark.parametrize("name", ["Ascend910B3", "Ascend910C"])
def test_nothing_is_written_for_no_chips(name: str) -> None:
    """HAMi writes the memory of a whole chip, which no node but one with such a chip has."""
    asked = container({f"huawei.com/{name}": "0"}, None)

    assert not vendor(name).mutate(asked, {"metadata": {}, "spec": {}}).wants
    assert asked == container({f"huawei.com/{name}": "0"}, None)


def test_an_odd_number_of_chips_in_modules_is_refused_with_hamis_message() -> None:
    with pytest.raises(InvalidRequest) as refusal:
        admit_container("Ascend910C", {"": 3})
    assert str(refusal.value) == "Ascend910C device request must be 1 or 2*n, got 3"


def test_soft_slices_keep_their_memory_and_may_ask_for_cores_and_several_chips() -> None:
    asked = {"": 2, "-memory": 1000, "-core": 30}

    limits, requests = admit_container("Ascend910B3", asked, soft=True)
    assert limits == {"": 2, "-memory": "1000", "-core": 30}
    assert requests == {"-memory": "1000"}
    limits, _ = admit_container("Ascend910B3", {"": 1, "-core": 30}, soft=True)
    assert limits["-memory"] == "65536"


@pytest.mark.parametrize(
    ("name", "limits", "wrong"),
    [
        ("Ascend910B3", {"": 1, "-core": 30}, "huawei.com/vnpu-mode: hami-core"),
        ("Ascend910B3", {"": 2, "-memory": 16384}, "vNPU not supported for multiple devices"),
        ("Ascend910C", {"": 4, "-memory": 16384}, "vNPU not supported for multiple devices"),
        (
            "Ascend310P",
            {"": 1, "-memory": 24577},
            "24577 is invalid: expected 3072, 6144, 12288 or 21527",
        ),
        ("Ascend310P", {"": 1, "-memory": "16Gi"}, "write 16384"),
        ("Ascend310P", {"": "0.5"}, "a whole number of cards"),
    ],
)
def test_what_a_chip_can_never_give_is_refused(name, limits, wrong) -> None:
    with pytest.raises(InvalidRequest, match=wrong) as refusal:
        admit_container(name, limits)
    assert f"container 'c': huawei.com/{name}" in str(refusal.value)


def test_cores_of_zero_ask_for_none() -> None:
    assert admit_container("Ascend910B3", {"": 1, "-core": 0})[0]["-core"] == 0


def test_several_whole_chips_may_name_their_memory() -> None:
    assert admit_container("Ascend910B3", {"": 2, "-memory": 65536})[0]["-memory"] == "65536"
    assert admit_container("Ascend910B3", {"": 2, "-memory": 40000})[0]["-memory"] == "65536"


def test_with_a_factor_memory_stays_in_its_units_and_in_its_template() -> None:
    """A request of 2184 MiB in `vir02` asks for 2 units of 1024 MiB; 3 would be `vir04`."""
    factor = {"memory_factor": 1024}

    assert admit_container("Ascend910A", {"": 1, "-memory": 2}, **factor)[0]["-memory"] == "2"
    assert admit_container("Ascend910A", {"": 1, "-memory": 3}, **factor)[0]["-memory"] == "4"
    assert admit_container("Ascend910A", {"": 1}, **factor)[0]["-memory"] == "32"


def test_a_chip_without_a_memory_resource_gets_none_written() -> None:
    assert admit_container("Ascend910B3", {"": 2}, resource_memory_name="") == ({"": 2}, {})


def test_the_runtime_class_is_set_where_the_pod_has_none() -> None:
    chip = vendor("Ascend910B3", runtime_class_name="ascend")
    for before, after in (({}, "ascend"), ({"runtimeClassName": "own"}, "own")):
        pod = {"metadata": {}, "spec": before}
        chip.mutate(container({"huawei.com/Ascend910B3": 1}), pod)

        assert pod["spec"]["runtimeClassName"] == after


def test_no_count_in_limits_is_no_resource() -> None:
    for asked in (
        container(),
        container(None, {"huawei.com/Ascend910B3": 1}),
        container({"huawei.com/Ascend910B3-memory": 5}),
    ):
        before = deepcopy(asked)

        assert not vendor("Ascend910B3").mutate(asked, {"spec": {}}).wants
        assert asked == before


def test_chips_are_hidden_from_containers_that_ask_for_none_of_any_chip() -> None:
    """HAMi hides them also from a container that asks for another chip of the configuration."""
    chip = vendor("Ascend910B3", overwrite_env=True)
    other, plain = container({"huawei.com/Ascend310P": 1}), container()
    for _ in range(2):
        chip.mutate(other, {"spec": {}})
        chip.mutate(plain, {"spec": {}})

    assert plain["env"] == [{"name": "ASCEND_VISIBLE_DEVICES", "value": ""}]
    assert "env" not in other
