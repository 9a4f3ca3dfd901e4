"""Wall clocks that jump: `clockshift.c` preloaded into every process of the system.

A process is named as its command is (`hami-scheduler`, `postgres`), an agent by its node.
"""

import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

NAMES = ("hami-scheduler", "postgres", "node-0")
NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """The shifts, one file each; processes see a change immediately."""

    folder: Path
    library: Path

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables with which the processes must be started."""
        return {"LD_PRELOAD": str(self.library), "CLOCKSHIFT_DIR": str(self.folder)}

    def jump(self, name: str, seconds: float) -> None:
        """From now on the process is so far ahead of the world (negative: behind)."""
        with (self.folder / name).open("r+b") as file:
            file.write(struct.pack("=q", int(seconds * NS_PER_S)))

    def all_right(self) -> None:
        """Every clock shows the time."""
        for name in NAMES:
            self.jump(name, 0)


def build(folder: Path) -> Path:
    """Compile the library into the folder."""
    library = folder / "clockshift.so"
    source = Path(__file__).with_name("clockshift.c")
    subprocess.run(
        ["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", library, source],
        check=True,
    )
    return library


def own_clocks(folder: Path, library: Path) -> Clocks:
    """One file per name, all without a shift."""
    clocks = Clocks(folder=folder / "clocks", library=library)
    clocks.folder.mkdir(mode=0o755)
    for name in NAMES:
        (clocks.folder / name).write_bytes(bytes(8))
    return clocks
