"""The NUMA nodes of cards: as sysfs has them, else as NVML has them."""

import json
import subprocess
import sys
from pathlib import Path

from tests.integration.node_agent.machine import Machine
from tests.waiting import PATIENCE_S

READ = """
import json, pathlib, sys
from hami_node_agent.adapters.nvml.driver import NvmlDriver
driver = NvmlDriver(sysfs_root=pathlib.Path(sys.argv[1]), fallback_memory_mib=0)
driver.start()
print(json.dumps([card.numa for card in driver.cards()]))
"""


def numa_nodes(machine: Machine, sysfs: Path) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", READ, str(sysfs)],
        env=machine.env(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    found: list[int] = json.loads(done.stdout)
    return found


def test_numa_nodes_come_from_sysfs_and_where_it_has_no_such_card_from_the_driver(
    machine: Machine, tmp_path: Path
) -> None:
    file = machine.root / "fakegpu.json"
    described = json.loads(file.read_text())
    described["devices"][1]["numa"] = 1
    file.write_text(json.dumps(described))

    assert numa_nodes(machine, tmp_path) == [0, 1]

    first = tmp_path / "bus/pci/devices/0000:07:00.0"
    first.mkdir(parents=True)
    (first / "numa_node").write_text("3\n")
    assert numa_nodes(machine, tmp_path) == [3, 1]
    (first / "numa_node").write_text("-1\n")
    assert numa_nodes(machine, tmp_path) == [0, 1]
