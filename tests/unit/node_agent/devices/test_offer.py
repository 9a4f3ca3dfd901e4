import pytest
from hami_node_agent.devices.offer import WHOLE, CardFacts, Offer, offered_device, product_type
from hamicommon.k8s.node_register import encode_register

from tests.unit.devices import a_device
from tests.unit.node_agent.builders import CARD_A


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB"),
        ("Tesla P4", "NVIDIA-Tesla P4"),
    ],
)
def test_the_type_always_begins_with_nvidia(name: str, kind: str) -> None:
    assert product_type(name) == kind


def test_scaled_amounts_are_truncated() -> None:
    facts = CardFacts(uuid=CARD_A, index=1, name="Tesla P4", memory_mib=7611, numa=1)

    card = offered_device(facts, Offer(split_count=4, memory_scaling=1.5, core_scaling=1.29))

    assert card == a_device(
        CARD_A, index=1, type="NVIDIA-Tesla P4", slots=4, memory_mib=11416, core_percent=129, numa=1
    )


def test_a_whole_card_has_one_slot_and_is_not_scaled() -> None:
    facts = CardFacts(uuid=CARD_A, index=0, name="Tesla P4", memory_mib=7611)

    card = offered_device(facts, Offer(split_count=4, memory_scaling=2, core_scaling=2, mode=WHOLE))

    assert (card.slots, card.memory_mib, card.core_percent) == (1, 7611, 100)
    assert card.mode == "whole"


def test_the_register_text_is_hamis() -> None:
    facts = CardFacts(uuid=CARD_A, index=0, name="NVIDIA A100-SXM4-40GB", memory_mib=40960)

    assert encode_register([offered_device(facts, Offer())]) == (
        f'[{{"id":"{CARD_A}","count":10,"devmem":40960,"devcore":100,'
        '"type":"NVIDIA A100-SXM4-40GB","mode":"hami-core","health":true}]'
    )
