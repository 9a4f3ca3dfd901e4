"""The Helm chart's folder, and Helm itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

K8S = Path(__file__).parents[3] / "k8s"
CHART, BASE = K8S / "chart", K8S / "base"
HELM = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
Json = dict[str, Any]


def helm(*argv: str) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    return subprocess.run([HELM, *argv], capture_output=True, text=True, timeout=120, check=False)
