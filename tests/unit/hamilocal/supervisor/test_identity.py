"""A pid names a process only together with its start."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

from hamilocal.supervisor.children import identity_of, is_alive, send_signal


def test_a_process_is_known_by_pid_and_start() -> None:
    me = identity_of(os.getpid())
    assert me is not None
    assert is_alive(me)
    assert not is_alive(replace(me, start_ticks=me.start_ticks + 1))
    assert not is_alive(replace(me, boot_id="another boot"))


def test_a_process_with_the_same_pid_but_another_start_is_never_signalled() -> None:
    with subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]) as child:
        true = identity_of(child.pid)
        assert true is not None
        assert not send_signal(replace(true, start_ticks=true.start_ticks - 1), signal.SIGKILL)
        assert child.poll() is None
        assert send_signal(true, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL


def test_a_zombie_counts_as_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert identity_of(child.pid) is None
