"""A launch is charged to the device whose context is current, however it became current."""

import struct

import pytest

from tests.native.machine import CARDS, Container

PAID_AT = 1856 + 1960 + 1160 + 24
"""slots[1].util[0].spare[0]: until when the device's time is paid for; the next device is 48 on."""


def paid(container: Container) -> list[bool]:
    content = container.region.read_bytes()
    return [struct.unpack_from("<q", content, PAID_AT + 48 * device)[0] > 0 for device in (0, 1)]


@pytest.mark.parametrize("how", ["set", "push", "pop", "create"])
def test_a_launch_after_a_change_of_context_is_charged_to_the_new_device(
    container: Container, how: str
) -> None:
    container.limits(
        "hami-limits 1\npolicy force\n"
        + "".join(f"device {card} memory_bytes 0 core_percent 50\n" for card in CARDS)
    )
    client = container.start()
    assert client.call("open_device") == {"result": 0}
    assert client.call("launch_on_both", how=how) == {"result": 0}
    assert paid(container) == [True, True]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("limited", [(True, True), (True, False), (False, True)])
def test_a_launch_on_several_devices_is_charged_to_each(
    container: Container, first: int, limited: tuple[bool, bool]
) -> None:
    percents = (50 if one else 100 for one in limited)
    container.limits(
        "hami-limits 1\npolicy force\n"
        + "".join(
            f"device {card} memory_bytes 0 core_percent {percent}\n"
            for card, percent in zip(CARDS, percents, strict=True)
        )
    )
    client = container.start()
    assert client.call("open_device") == {"result": 0}
    assert client.call("launch_cooperatively", first=first) == {"result": 0}
    assert paid(container) == list(limited)


@pytest.mark.parametrize("how", ["cuLaunch", "cuLaunchGrid", "cuLaunchGridAsync"])
def test_launches_as_before_cuda_4_are_charged_too(container: Container, how: str) -> None:
    container.limits(
        f"hami-limits 1\npolicy force\ndevice {CARDS[0]} memory_bytes 0 core_percent 50\n"
    )
    client = container.start(FAKEGPU_VISIBLE_DEVICES=CARDS[0])
    assert client.call("open_device") == {"result": 0}
    assert client.call("launch_as_before_cuda_4", how=how, kernels=20) == {"result": 0}
    assert paid(container) == [True, False]
