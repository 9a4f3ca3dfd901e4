"""Pods for admission to judge, and rules to judge them by."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import jsonpatch
from hamicommon.admission.verdicts import AdmissionResult, AdmissionRules
from hamicommon.device_config import DeviceConfig, NvidiaConfig, load
from hamicommon.vendors.registry import Vendors

GPU = "nvidia.com/gpu"
MEM = "nvidia.com/gpumem"
PCT = "nvidia.com/gpumem-percentage"
CORES = "nvidia.com/gpucores"


def rules(*, scheduler_name: str = "hami-scheduler", force: bool = True, **nvidia: Any):
    return AdmissionRules(
        vendors=Vendors.from_config(DeviceConfig(nvidia=NvidiaConfig(**nvidia))),
        scheduler_name=scheduler_name,
        force_overwrite_default_scheduler=force,
    )


def container(limits: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"name": "c", "image": "x", "resources": {"limits": limits or {}}} | more


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    metadata = {"name": "p", "namespace": "default"}
    return {"metadata": metadata, "spec": {"containers": list(containers), **spec}}


def apply_verdict(given_: dict[str, Any], verdict: AdmissionResult) -> dict[str, Any]:
    assert verdict.allowed, verdict.message
    return jsonpatch.apply_patch(deepcopy(given_), verdict.patch)


EVERY_VENDOR = Vendors.from_config(load(None), enable_ascend=True, enable_iluvatar=True)

SET_SCHEDULER = {"op": "add", "path": "/spec/schedulerName", "value": "hami-scheduler"}
