from hami_node_agent.domain.limits import limits_text

from tests.unit.node_agent.builders import CARD_A, CARD_B, a_share


def test_the_file_says_bytes_and_percent_for_each_card() -> None:
    text = limits_text(
        [a_share(CARD_A, 4096, 30), a_share(CARD_B, 0, 100)], policy="force", oversubscribe=True
    )

    assert text == (
        "hami-limits 1\n"
        "policy force\n"
        "oversubscribe 1\n"
        f"device {CARD_A} memory_bytes 4294967296 core_percent 30\n"
        f"device {CARD_B} memory_bytes 0 core_percent 100\n"
    )
