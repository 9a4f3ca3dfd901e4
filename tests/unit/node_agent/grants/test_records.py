from hami_node_agent.grants.records import AgentState, PendingReport, is_complete

from tests.unit.node_agent.builders import a_container, a_grant, a_record, a_share

GRANT = a_grant(
    a_container(a_share(), name="one", index=0),
    a_container(name="none", index=1),
    a_container(a_share(), name="two", index=2),
)
ONE = a_record(GRANT, "one", ids={"x-0"}, nonce="1")
TWO = a_record(GRANT, "two", ids={"x-1"}, nonce="2")


def test_a_pod_is_complete_with_an_answer_for_every_container_that_wants_cards() -> None:
    assert not is_complete(GRANT, [ONE])
    assert is_complete(GRANT, [ONE, TWO])


def test_a_report_is_queued_once() -> None:
    report = PendingReport(report_id="r", body="{}")

    state = AgentState().with_report(report).with_report(report)

    assert state.reports == (report,)
    assert state.without_report("r").reports == ()


def test_dropping_a_pod_keeps_the_others() -> None:
    other = a_record(a_grant(pod="other"), ids={"y-0"}, nonce="3")

    state = AgentState().with_records([ONE, TWO, other]).without_pod("pod-1")

    assert list(state.records) == ["3"]
