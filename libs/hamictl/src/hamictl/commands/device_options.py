"""Options for which vendors are served, of verbs that judge pods without a scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from hamicommon import device_config as deviceconfig
from hamicommon.vendors.registry import Vendors

ConfigFile = Annotated[
    Path | None,
    typer.Option("--device-config", help="HAMi's device-config.yaml (default: its own values)"),
]
Ascend = Annotated[
    bool, typer.Option("--enable-ascend", help="also serve Ascend cards, as in HAMi")
]
Iluvatar = Annotated[
    bool, typer.Option("--enable-iluvatar", help="also serve Iluvatar cards, as in HAMi")
]


def served_vendors(config: Path | None, ascend: bool, iluvatar: bool) -> Vendors:
    """Read the device configuration. Raises: InvalidRequest."""
    return Vendors.from_config(
        deviceconfig.load(config), enable_ascend=ascend, enable_iluvatar=iluvatar
    )
