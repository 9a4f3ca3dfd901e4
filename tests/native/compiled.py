"""Small programs in C, compiled for a test."""

import subprocess
from pathlib import Path

from tests.waiting import PATIENCE_S


def compile_program(folder: Path, source: str, *options: str | Path, name: str = "program") -> Path:
    """The program, or with `-shared` the library, of that name in the folder."""
    file = folder / f"{name}.c"
    file.write_text(source)
    program = folder / name
    subprocess.run(["cc", "-o", program, file, *options], check=True, timeout=PATIENCE_S)
    return program
