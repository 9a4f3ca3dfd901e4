from hami_node_agent.grants.limits_file import (
    CoreFeedback,
    HostPid,
    limits_text,
    pids_text,
    with_feedback,
)

from tests.unit.node_agent.builders import CARD_A, CARD_B, a_share


def test_the_file_has_bytes_and_percent_for_each_card() -> None:
    text = limits_text(
        [a_share(CARD_A, 4096, 30), a_share(CARD_B, 0, 100)],
        policy="force",
        oversubscribe=True,
        region="/usr/local/vgpu/n.cache",
    )

    assert text == (
        "hami-limits 1\n"
        "policy force\n"
        "oversubscribe 1\n"
        f"device {CARD_A} memory_bytes 4294967296 core_percent 30\n"
        f"device {CARD_B} memory_bytes 0 core_percent 100\n"
        "region /usr/local/vgpu/n.cache\n"
    )


def test_the_feedback_loops_lines_are_there_only_while_they_mean_something() -> None:
    plain = limits_text(
        [a_share(CARD_A, 4096, 30)], policy="default", oversubscribe=False, region="/n.cache"
    )

    relaxed = with_feedback(plain, CoreFeedback(relaxed=True))
    waiting = with_feedback(relaxed, CoreFeedback(waits_until_s=1_800_000_000))

    assert relaxed == plain + "utilization_switch 0\n"
    assert waiting == plain + "priority_block 1 1800000000\n"
    assert with_feedback(waiting, CoreFeedback()) == plain


def test_pids_are_a_line_each_by_the_number_in_the_container() -> None:
    assert pids_text([HostPid(7, 4711, 5), HostPid(1, 4710, 4)]) == "1 4710 4\n7 4711 5\n"
