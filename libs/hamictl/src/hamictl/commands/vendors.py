"""`hamictl vendors`: resources that pods may request under a device configuration.

Also prints what the cluster must know of them, for manifests whose configuration is not the
default: the extender's `managedResources` and the webhook's match condition.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
import yaml
from hamicommon.admission.registration import (
    ServiceReference,
    match_expression,
    other_conditions,
    registration_of,
)
from hamicommon.admission.tampering.findings import TamperingPolicy
from hamicommon.settings import TamperingMode
from hamicommon.vendors.interface.vendor import Vendor
from hamicommon.vendors.registry import Vendors
from hamilocal.system.kubernetes import managed_resources

from hamictl.commands.runner import console, spoken_errors
from hamictl.commands.simulate import Ascend, ConfigFile, Iluvatar, served_vendors
from hamictl.view.lists import table


class OutputForm(StrEnum):
    """Output formats."""

    TABLE = "table"
    KUBE_SCHEDULER = "kube-scheduler"
    WEBHOOK = "webhook"


def vendors(
    device_config: ConfigFile = None,
    enable_ascend: Ascend = False,
    enable_iluvatar: Iluvatar = False,
    output: Annotated[
        OutputForm,
        typer.Option(
            "--output",
            "-o",
            help="table; kube-scheduler: the extender's managedResources; webhook: its "
            "matchConditions",
        ),
    ] = OutputForm.TABLE,
    tampering: Annotated[
        TamperingMode,
        typer.Option("--tampering", help="with -o webhook: the webhook's HAMI_ADMISSION_TAMPERING"),
    ] = "refuse",
) -> None:
    """List the resources that each vendor's pods may ask for."""
    with spoken_errors():
        served = served_vendors(device_config, enable_ascend, enable_iluvatar)
    match output:
        case OutputForm.TABLE:
            _show(served)
        case OutputForm.KUBE_SCHEDULER:
            managed = managed_resources(served.resource_names)
            _print({"managedResources": managed})
        case OutputForm.WEBHOOK:
            policy = TamperingPolicy(mode=tampering)
            registration = registration_of(served, target=ServiceReference(), tampering=policy)
            expression = match_expression(registration)
            others = other_conditions(registration)
            _print(
                {
                    "matchConditions": [{"name": "concerns-hami", "expression": expression}],
                    "matchConditionsOfOtherPods": others,
                }
            )


def _print(document: object) -> None:
    typer.echo(yaml.safe_dump(document, sort_keys=False, width=100), nl=False)


def _show(served: Vendors) -> None:
    columns = ("VENDOR", "COUNT", "MEMORY", "MEMORY PERCENT", "CORES", "PRIORITY")
    console.print(table("", columns, (_row(vendor) for vendor in served)))


def _row(vendor: Vendor) -> tuple[str, ...]:
    names = vendor.resources
    asked = (names.count, names.memory, names.memory_percent, names.core, names.priority)
    return (vendor.name, *(name or "-" for name in asked))
