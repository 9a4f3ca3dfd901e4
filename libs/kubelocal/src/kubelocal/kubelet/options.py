"""What the kubelet is given on its command line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# The native folder, seen from an editable installation; from elsewhere some folder, which the
# option has to replace, however few there are above this file.
NATIVE_DIR = (Path(__file__).resolve().parent / "../../../../../native").resolve()


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletOptions:
    """One node. Amounts (`cpu`, `memory`) are Kubernetes quantities."""

    node: str
    kubeconfig: Path
    root: Path
    fakegpu_config: Path | None
    own_driver: bool
    driver_folder: Path | None
    native_dir: Path
    cpu: str
    memory: str
    pods: int
    mounts: str
    admission_delay_s: float
    shuffle_window_s: float
    allocate_timeout_s: float
    backoff_initial_s: float
    backoff_max_s: float
    sync_retry_s: float
    stop_containers_on_exit: bool
    seed: int | None
    cdi_dir: Path | None
    skipped_namespace: str | None

    @property
    def pods_selector(self) -> str:
        """Field selector of the pods that run here."""
        bound = f"spec.nodeName={self.node}"
        if self.skipped_namespace is None:
            return bound
        return f"{bound},metadata.namespace!={self.skipped_namespace}"


def parse(arguments: Sequence[str] | None = None) -> KubeletOptions:
    """The options given on the command line."""
    parser = argparse.ArgumentParser(prog="python -m kubelocal.kubelet", description=__doc__)
    add = parser.add_argument
    add("--node", required=True, help="name of the Node")
    add("--kubeconfig", required=True, type=Path, help="how to reach the API server")
    add("--root", required=True, type=Path, help="directory for sockets, logs and state")
    add("--fakegpu-config", type=Path, help="configuration of the stand-in driver")
    add("--own-driver", action="store_true", help="containers find this machine's own driver")
    add("--driver-folder", type=Path, help="its libraries, where the loader does not find them")
    add("--native-dir", type=Path, default=NATIVE_DIR, help="built native parts")
    add("--cpu", default="16", help="CPUs of the node")
    add("--memory", default="64Gi", help="memory of the node")
    add("--pods", type=int, default=250, help="pods that the node takes")
    add("--mounts", default="auto", choices=["auto", "namespace", "pathmap"])
    add("--admission-delay-ms", type=float, default=0.0, help="a slow kubelet, for tests")
    add("--shuffle-window-ms", type=float, default=0.0, help="admits what comes in it in any order")
    add("--allocate-timeout-s", type=float, default=120.0, help="for the plugin's Allocate")
    add("--backoff-initial-s", type=float, default=10.0, help="first crash-loop pause")
    add("--backoff-max-s", type=float, default=300.0, help="longest crash-loop pause")
    add("--sync-retry-s", type=float, default=10.0, help="pause after a refused start")
    add("--stop-containers-on-exit", action="store_true", help="leave nothing running")
    add("--seed", type=int, help="makes the choice of device ids repeatable")
    add("--cdi-dir", type=Path, help="where CDI files are; absent: a runtime that knows no CDI")
    add("--skip-namespace", help="its pods are run by somebody else, under the same Node")
    given = parser.parse_args(arguments)
    fakegpu = given.fakegpu_config
    return KubeletOptions(
        node=given.node,
        kubeconfig=given.kubeconfig,
        root=given.root.resolve(),
        fakegpu_config=None if fakegpu is None else fakegpu.resolve(),
        own_driver=given.own_driver,
        driver_folder=given.driver_folder,
        native_dir=given.native_dir.resolve(),
        cpu=given.cpu,
        memory=given.memory,
        pods=given.pods,
        mounts=given.mounts,
        admission_delay_s=given.admission_delay_ms / 1000,
        shuffle_window_s=given.shuffle_window_ms / 1000,
        allocate_timeout_s=given.allocate_timeout_s,
        backoff_initial_s=given.backoff_initial_s,
        backoff_max_s=given.backoff_max_s,
        sync_retry_s=given.sync_retry_s,
        stop_containers_on_exit=given.stop_containers_on_exit,
        seed=given.seed,
        cdi_dir=given.cdi_dir,
        skipped_namespace=given.skip_namespace,
    )
