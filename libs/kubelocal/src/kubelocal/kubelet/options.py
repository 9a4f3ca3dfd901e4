"""Options of the kubelet's command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field, ValidationError
from pydantic_settings import CliApp

# The native folder of an editable installation. In other installations it is an arbitrary folder,
# even if few are above this file, and the option must replace it.
NATIVE_DIR = (Path(__file__).resolve().parent / "../../../../../native").resolve()

Folder = Annotated[Path, AfterValidator(Path.resolve)]


class KubeletOptions(BaseModel):
    """Options of one node's kubelet.

    A flag is a field's name with hyphens. Amounts (`cpu`, `memory`) are Kubernetes quantities.
    """

    node: str = Field(description="name of the Node")
    kubeconfig: Path = Field(description="how to reach the API server")
    root: Folder = Field(description="directory for sockets, logs and state")
    fakegpu_config: Folder | None = Field(None, description="configuration of the stand-in driver")
    own_driver: bool = Field(False, description="containers find this machine's own driver")
    driver_folder: Path | None = Field(None, description="its libraries, if no loader finds them")
    native_dir: Folder = Field(NATIVE_DIR, description="built native parts")
    cpu: str = Field("16", description="CPUs of the node")
    memory: str = Field("64Gi", description="memory of the node")
    pods: int = Field(250, description="pods that the node takes")
    mounts: Literal["auto", "namespace", "pathmap"] = "auto"
    admission_delay_ms: float = Field(0.0, description="a slow kubelet, for tests")
    shuffle_window_ms: float = Field(0.0, description="admit what comes in it in any order")
    allocate_timeout_s: float = Field(120.0, description="for the plugin's Allocate")
    backoff_initial_s: float = Field(10.0, description="first crash-loop pause")
    backoff_max_s: float = Field(300.0, description="longest crash-loop pause")
    sync_retry_s: float = Field(10.0, description="pause after a refused start")
    stop_containers_on_exit: bool = Field(False, description="leave nothing running")
    seed: int | None = Field(None, description="makes the choice of device ids repeatable")
    cdi_dir: Path | None = Field(None, description="CDI files; absent: the runtime knows no CDI")
    skip_namespace: str | None = Field(None, description="its pods run elsewhere")

    @property
    def pods_selector(self) -> str:
        """Return the field selector of this node's pods."""
        bound = f"spec.nodeName={self.node}"
        if self.skip_namespace is None:
            return bound
        return f"{bound},metadata.namespace!={self.skip_namespace}"


def parse(arguments: Sequence[str] | None = None) -> KubeletOptions:
    """Parse the command line; mistakes end the process with a line each."""
    try:
        return CliApp.run(KubeletOptions, cli_args=None if arguments is None else list(arguments))
    except ValidationError as error:
        for each in error.errors():
            flag = ".".join(map(str, each["loc"])).replace("_", "-")
            sys.stderr.write(f"kubelocal.kubelet: --{flag}: {each['msg']}\n")
        raise SystemExit(2) from None
