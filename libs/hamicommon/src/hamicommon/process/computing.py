"""Run long computations in a separate process, so that they don't block the event loop.

A thread does not suffice: decoding one large JSON body keeps the interpreter's lock for longer than
a decision may take. The process starts with the first question and ends when it is idle. It answers
one question at a time; if one takes too long, its process is killed. Questions and answers are
pickled, over pipes that no other process has.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

from hamicommon.errors import HamiError, Unavailable

P = ParamSpec("P")
T = TypeVar("T")

_SIZE_BYTES = 8
# Decisions have precedence on few processors.
_NICENESS = 10


class ComputeProcess:
    """Call functions in another process while `run` runs."""

    def __init__(self, *, deadline_s: float, max_waiting: int, idle_s: float = 300.0) -> None:
        """Allow at most `max_waiting` waiting calls, each for at most `deadline_s`.

        The process ends after `idle_s` without a call.
        """
        self._deadline_s = deadline_s
        self._max_waiting = max_waiting
        self._idle_s = idle_s
        self._waiting = 0
        self._turn = asyncio.Lock()
        self._process: Process | None = None
        self._is_asked = asyncio.Event()

    async def call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work`, a module-level function, in the other process and return its result.

        Raises: the HamiError that `work` raises; Unavailable if too many calls wait, or the process
        takes too long or dies.
        """
        if self._waiting > self._max_waiting:
            raise Unavailable(f"{self._waiting} such requests are waiting already; try again later")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._deadline_s), self._turn:
                return cast(T, await self._send_question(pickle.dumps((work, args, kwargs))))
        except TimeoutError:
            raise Unavailable(
                f"no answer within {self._deadline_s:g} s, so the request was cancelled; ask for "
                "less, or try again later"
            ) from None
        finally:
            self._waiting -= 1

    async def _send_question(self, question: bytes) -> object:
        self._is_asked.set()
        try:
            answer = await self._answer(question)
        except (asyncio.IncompleteReadError, ConnectionError) as exc:
            await self._end()
            raise Unavailable(
                "the process that computes ended without an answer; its error is in the log"
            ) from exc
        except BaseException:  # also a cancellation: the process would answer the next question
            await self._end()
            raise
        is_answered, found = pickle.loads(answer)  # written by our own process
        if not is_answered:
            raise found
        return found

    async def _answer(self, question: bytes) -> bytes:
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", __name__, stdin=PIPE, stdout=PIPE
            )
        questions, answers = self._process.stdin, self._process.stdout
        assert questions is not None
        assert answers is not None
        questions.write(len(question).to_bytes(_SIZE_BYTES) + question)
        await questions.drain()
        size = int.from_bytes(await answers.readexactly(_SIZE_BYTES))
        return await answers.readexactly(size)

    async def run(self) -> None:
        """End the other process when it is idle, and when this task is cancelled."""
        try:
            while True:
                await self._is_asked.wait()
                self._is_asked.clear()
                await asyncio.sleep(self._idle_s)
                if not self._is_asked.is_set():
                    async with self._turn:
                        await self._end()
        finally:
            await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.communicate()


def main() -> None:
    """Answer calls until the parent closes its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    is_ready = False
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # Output that a library prints must not get between the answers.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    questions = sys.stdin.buffer
    while size := questions.read(_SIZE_BYTES):
        work, args, kwargs = pickle.loads(questions.read(int.from_bytes(size)))
        if not is_ready:
            # Only now: the first question imports modules, which is slow on a busy machine.
            os.nice(_NICENESS)
            is_ready = True
        try:
            answer = pickle.dumps((True, work(*args, **kwargs)))
        except HamiError as exc:
            answer = pickle.dumps((False, exc))
        answers.write(len(answer).to_bytes(_SIZE_BYTES) + answer)
        answers.flush()


if __name__ == "__main__":
    main()
