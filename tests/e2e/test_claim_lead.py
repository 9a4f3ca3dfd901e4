"""ResourceClaims that the ledger allocates, on a real control plane with several nodes.

The nodes are simulated, so their ResourceSlices are written here; what kubelet and agent do with an
allocated claim is in `tests/e2e_node/test_claim_lead.py`.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from hamicommon.dra.devices import DRIVER, device_name, device_of
from hamicommon.dra.requests import DEVICE_CLASS
from hamicommon.k8s.types import Json
from hamilocal.servers.control_plane.assets import find_assets
from hamilocal.supervisor.ports import free_port

from tests import measured
from tests.e2e.conftest import running_system
from tests.e2e.system import System, a_pod, slice_of, wait

pytestmark = [pytest.mark.e2e]
