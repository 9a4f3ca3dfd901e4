"""Stand-in for `nvidia-cuda-mps-control`: `-d` starts a daemon, commands are read from stdin.

As with NVIDIA's: CUDA_MPS_PIPE_DIRECTORY identifies a daemon, a second one of the same directory
is refused, and a command without a daemon ends with status 1. It also has `get_server_list`, `quit`
and `pid`.
"""

import os
import socket
import sys
from pathlib import Path

PIPES = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
CONTROL = PIPES / "control"


def ask_daemon(command: str) -> str | None:
    """The daemon's reply; None without one."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(CONTROL))
        except OSError:
            return None
        client.sendall(command.encode())
        client.shutdown(socket.SHUT_WR)
        return client.makefile().read()


def serve(server: socket.socket) -> None:
    while True:
        client, _ = server.accept()
        with client:
            command = client.makefile().read().strip()
            if command == "pid":
                client.sendall(str(os.getpid()).encode())
            if command == "quit":
                CONTROL.unlink()
                return


def start() -> int:
    if ask_daemon("get_server_list") is not None:
        sys.stdout.write("An instance of this daemon is already running\n")
        return 1
    CONTROL.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(CONTROL))
    server.listen()
    if os.fork():
        return 0
    os.setsid()
    with Path(os.devnull).open("r+b") as nothing:
        for number in (0, 1, 2):
            os.dup2(nothing.fileno(), number)
    serve(server)
    return 0


def main() -> int:
    if sys.argv[1:] == ["-d"]:
        return start()
    reply = ask_daemon(sys.stdin.read())
    if reply is None:
        sys.stdout.write("Cannot find MPS control daemon process\n")
        return 1
    sys.stdout.write(f"{reply}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
