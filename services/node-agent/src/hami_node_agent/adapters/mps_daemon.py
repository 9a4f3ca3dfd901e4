"""Keep NVIDIA's MPS control daemon running, in operating mode `mps`.

One that answers already is taken as it is (a service of the node's, or our own from before a
restart); otherwise it is started, and started again when it dies. It is left running when we end,
as pods are: their processes are its clients.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

from hamicommon.errors import Unavailable
from hamicommon.process.periodic import every

logger = logging.getLogger(__name__)

# One question, or one start; the daemon answers in milliseconds.
TIMEOUT_S = 10.0
COMMAND = "nvidia-cuda-mps-control"
LOOK_S = 2.0


class MpsControl:
    """One daemon, identified by its pipe folder."""

    def __init__(self, folder: Path) -> None:
        self._pipe_dir = folder / "pipe"
        self._log_dir = folder / "log"
        self._command = shutil.which(COMMAND) or COMMAND

    async def answers(self) -> bool:
        """Return whether the daemon runs. Raises: Unavailable if its command can't be run."""
        code, _ = await self._run(b"get_server_list\n")
        return code == 0

    async def start(self) -> None:
        """Start the daemon, which outlives the agent. Raises: Unavailable."""
        for directory in (self._pipe_dir, self._log_dir):
            await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
        # Clients are other users of other containers.
        await asyncio.to_thread(self._pipe_dir.chmod, 0o777)
        code, output = await self._run(b"", "-d")
        if code != 0:
            raise Unavailable(f"{COMMAND} -d: exit status {code}: {output.strip()}")

    async def _run(self, stdin: bytes, *arguments: str) -> tuple[int, str]:
        env = {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "CUDA_MPS_PIPE_DIRECTORY": str(self._pipe_dir),
            "CUDA_MPS_LOG_DIRECTORY": str(self._log_dir),
        }
        try:
            process = await asyncio.create_subprocess_exec(
                self._command,
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )
        except OSError as exc:
            raise Unavailable(f"{COMMAND}: {exc.strerror or exc}") from exc
        try:
            async with asyncio.timeout(TIMEOUT_S):
                output, _ = await process.communicate(stdin)
        except TimeoutError as exc:
            process.kill()
            await process.wait()
            raise Unavailable(f"{COMMAND}: no answer within {TIMEOUT_S:g} s") from exc
        return process.returncode or 0, output.decode(errors="replace")


class Mps:
    """Loop that keeps the daemons running."""

    def __init__(self, daemon: MpsControl) -> None:
        self._daemon = daemon
        self.problem = "the MPS control daemon has not been asked yet"
        """Why no pod should come here; empty while the daemon answers."""

    async def run(self) -> None:
        """Check repeatedly until cancelled."""
        await every(LOOK_S, self.look, name="MPS")

    async def look(self) -> None:
        """Check each daemon once, and start those that do not answer."""
        before = self.problem
        try:
            if not await self._daemon.answers():
                logger.warning("Starting the MPS control daemon because it does not answer")
                await self._daemon.start()
                if not await self._daemon.answers():
                    raise Unavailable("it was started and does not answer")
        except Unavailable as exc:
            self.problem = f"the MPS control daemon is unavailable: {exc}"
        else:
            self.problem = ""
        if self.problem != before:
            logger.info("MPS control daemon changed state", extra={"problem": self.problem})
