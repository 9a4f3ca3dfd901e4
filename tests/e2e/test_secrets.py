"""No log and no trace of a running system holds a secret, and every line of ours is one object."""

import json

from tests.e2e.secrets import leaks, secrets_of, written_by
from tests.e2e.system import System, a_pod, slice_of, wait

STEPS = ("Changed an allocation", "Allocated")
OURS = ("scheduler", "webhook", "metrics", "node-agent")


def test_no_secret_is_in_a_log_or_a_trace(system: System) -> None:
    system.run(a_pod("logged", slice_of(1000)))

    texts = written_by(system)

    assert {"scheduler.log", "metrics.log", "nats.log", "scheduler.jsonl"} <= texts.keys()
    assert leaks(secrets_of(system), texts) == []


def test_every_line_is_an_object_with_the_pod_and_trace_that_it_has(system: System) -> None:
    [pod] = system.run(a_pod("every-line", slice_of(1000)))
    uid = pod["metadata"]["uid"]

    def lines() -> list[dict[str, object]]:
        return [
            json.loads(line)
            for name, text in written_by(system).items()
            if name.endswith(".log") and name.startswith(OURS)
            # The last one may be half written.
            for line in text[: text.rfind("\n") + 1].splitlines()
        ]

    def steps() -> list[dict[str, object]] | None:
        found = [
            line for line in lines() if line.get("pod_uid") == uid and line["message"] in STEPS
        ]
        done = {(line["message"], line.get("to")) for line in found}
        return (
            found if done >= {("Changed an allocation", "allocated"), ("Allocated", None)} else None
        )

    found = wait(steps, "the lines of the pod", why=lambda: str(lines()[-20:]))

    assert {line["service"] for line in found} == {"hami-scheduler", "hami-node-agent"}
    assert all(line["level"] == "INFO" and len(str(line["trace_id"])) == 32 for line in found)
    admitted = next(line for line in lines() if line.get("pod") == "every-line")
    assert (admitted["service"], admitted["namespace"]) == ("hami-webhook", "default")
    trace_id = pod["metadata"]["annotations"]["hami.io/traceparent"].split("-")[1]
    assert admitted["trace_id"] == trace_id
