"""The failpoints of a pod's path, and what may go wrong at each: rows of tests/faults/README.md.

The names of the points are in `hamicommon.fault_injection`; the numbers are the survey's.
"""

from __future__ import annotations

from dataclasses import dataclass

PLANNED = {
    "kill": "kill",
    "error": "error*2",
    "delay": "delay:1*3",
    "duplicate": "twice*4",
    "reorder": "late:1*3",
    "lose": "lose*3",
}
"""Plan of each kind of fault at a point that names no other."""
RETRIED = "kube-scheduler tries the pod again"
REPEATED = "repeated; idempotent by (pod uid, attempt)"
REAPED = "the reconciler or the reaper finishes it"


@dataclass(frozen=True, slots=True)
class Case:
    """Rows of the page: one point with several kinds of fault."""

    number: str
    point: str
    what: str
    answer: str
    kinds: tuple[str, ...]
    quick: tuple[str, ...] = ()
    """Kinds that run in `make test` too."""
    planned: tuple[tuple[str, str], ...] = ()
    """Plans of this point that differ from PLANNED, by kind."""


CASES = (
    Case(
        "FAULT-6",
        "store.commit.before",
        "before the grants of /bind are written",
        RETRIED,
        ("kill", "error", "delay"),
        ("kill",),
    ),
    Case(
        "FAULT-7",
        "postgres.commit",
        "inside a transaction, before COMMIT",
        f"nothing was written; {RETRIED}",
        ("kill", "error", "delay"),
        ("kill",),
    ),
    Case(
        "FAULT-8",
        "store.commit.after",
        "the grants of /bind are written, the answer is lost",
        f"the next /bind takes it over under a new token; {REAPED}",
        ("kill", "error", "delay"),
        ("kill", "error"),
        (("delay", "delay:2*2"),),
    ),
    Case(
        "FAULT-10",
        "store.commit.before",
        "two grants of one pod at once",
        "one live allocation per pod uid (partial unique index)",
        ("duplicate",),
        ("duplicate",),
        (("duplicate", "twice*2"),),
    ),
    Case(
        "FAULT-13",
        "store.commit.before",
        "before the steps of bound pods are written",
        f"the pod watch sees it; {REAPED}",
        ("kill", "error", "delay", "duplicate"),
        (),
        (
            ("kill", "kill@2"),
            ("error", "error*4@2"),
            ("delay", "delay:1*4@2"),
            ("duplicate", "twice*4@2"),
        ),
    ),
    Case(
        "FAULT-13",
        "store.commit.after",
        "a batch of steps is written, the answer is lost",
        REAPED,
        ("kill", "error"),
        (),
        (("kill", "kill@2"), ("error", "error*4@2")),
    ),
    Case(
        "FAULT-19",
        "pods.annotate.before",
        "before the label's patch",
        "bound; the label comes with a later comparison",
        ("error", "kill", "delay"),
    ),
    Case(
        "FAULT-19",
        "pods.annotate.after",
        "labelled, the answer lost",
        "bound, labelled",
        ("error", "kill"),
    ),
    Case(
        "FAULT-39",
        "lock.acquire.before",
        "before the node's lock",
        f"binding failed; {RETRIED}",
        ("error", "kill", "delay"),
    ),
    Case(
        "FAULT-39",
        "lock.acquire.after",
        "the lock is held, the holder is gone",
        "the pod's next binding takes it over, or it expires",
        ("error", "kill", "delay"),
        (),
        (("delay", "delay:2*2"),),
    ),
    Case(
        "FAULT-39",
        "lock.release.before",
        "the lock's release",
        "it expires",
        ("error", "kill", "duplicate", "lose"),
    ),
    Case(
        "FAULT-40",
        "grants.offer.before",
        "the grant's way to the node",
        "the agent asks for the snapshot, then reads the signed annotation",
        ("error", "kill", "delay", "duplicate", "reorder", "lose"),
    ),
    Case(
        "FAULT-40",
        "grants.offer.after",
        "the node has the grant, its answer is lost",
        REPEATED,
        ("error", "kill"),
    ),
    Case(
        "FAULT-15",
        "pods.bind.before",
        "before the binding",
        f"binding failed; {RETRIED}",
        ("error", "kill", "delay"),
        (),
        (("delay", "delay:2*2"),),
    ),
    Case(
        "FAULT-15",
        "pods.bind.after",
        "bound, the answer lost",
        "the pod is read back and the row follows",
        ("error", "kill", "delay"),
        ("kill",),
        (("delay", "delay:2*2"),),
    ),
    Case(
        "FAULT-40",
        "bus.request.before",
        "a question to the nodes",
        "the grant goes by the stream; the agent asks for the snapshot",
        ("error", "delay", "duplicate"),
        ("error",),
        (("error", "error*3"), ("delay", "delay:1*6"), ("duplicate", "twice*9")),
    ),
    Case(
        "FAULT-40",
        "bus.request.after",
        "a question to the nodes, its answer lost",
        REPEATED,
        ("error", "kill"),
        (),
        (("error", "error*3"),),
    ),
    Case(
        "FAULT-40",
        "bus.publish_all.before",
        "facts from the outbox",
        "published later; states are compared with the ledger every 15 s",
        ("error", "kill", "delay", "duplicate", "lose"),
        ("duplicate",),
        (("duplicate", "twice*9"), ("lose", "lose*6")),
    ),
    Case(
        "FAULT-40",
        "bus.publish_all.after",
        "facts from the outbox, the receipt lost",
        "published once more under the same id",
        ("error", "kill"),
    ),
    Case(
        "FAULT-26",
        "node_files.write_limits.before",
        "the agent, before the limits file",
        "the kubelet fails the pod; its slice comes back",
        ("kill", "delay"),
    ),
    Case(
        "FAULT-26",
        "node_files.write_limits.after",
        "the agent, after the limits file",
        "the kubelet fails the pod; its slice comes back",
        ("kill",),
        ("kill",),
    ),
    Case(
        "FAULT-26",
        "node_state.save.before",
        "the agent, before its state is on disk",
        "the kubelet fails the pod; its slice comes back",
        ("kill", "delay"),
    ),
    Case(
        "FAULT-26",
        "node_state.save.after",
        "the agent, after its state is on disk",
        "the report is sent by the next agent",
        ("kill",),
    ),
    Case(
        "FAULT-40",
        "node_bus.publish.before",
        "the node's reports",
        "reports wait on disk; the pod watch sees started containers too",
        ("error", "kill", "duplicate", "delay", "reorder", "lose"),
        (),
        (
            ("error", "error*4"),
            ("duplicate", "twice*6"),
            ("delay", "delay:1*4"),
            ("reorder", "late:1*6"),
            ("lose", "lose*6"),
        ),
    ),
    Case(
        "FAULT-40",
        "node_bus.publish.after",
        "the node's reports, the receipt lost",
        REPEATED,
        ("error", "kill"),
        (),
        (("error", "error*4"),),
    ),
    Case(
        "FAULT-24",
        "node_kubelet_state.holdings.before",
        "the agent reads the kubelet's checkpoint",
        "the container waits for the check; it never starts unchecked",
        ("error", "delay"),
    ),
)
