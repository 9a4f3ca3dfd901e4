"""Children by vfork, posix_spawn and fork, and a program's successor by exec, share one slice."""

import subprocess
from collections.abc import Callable

from tests.native.driver_calls import DATA
from tests.native.machine import MIB, Container
from tests.waiting import PATIENCE_S

PROGRAM = (DATA / "lineage.c").read_text()


def test_children_and_successors_count_for_themselves_alone(
    container: Container, compile_c: Callable[..., object]
) -> None:
    container.limit(10 * MIB)
    program = compile_c(PROGRAM, "-ldl", "-pthread")

    done = subprocess.run(
        [str(program), "parent"],
        env=container.env(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )

    seen_by_a_child = ["child 4", "child 0 2"]  # 4 MiB are left; 1 more is refused
    assert done.stdout.splitlines() == [
        *seen_by_a_child,
        "after vfork 4",  # the child's end gave all back
        *seen_by_a_child,
        "after spawn 4",
        "forked 40",
        "after fork 4",
        "image 10",  # the 6 MiB went with the program that exec replaced
        "image 0 2",
    ]
    assert done.stderr == ""
