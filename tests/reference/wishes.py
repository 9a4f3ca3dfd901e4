"""Which cards a pod's annotations ask for or refuse (protocol 1.0.2, 1.1)."""

from hamicommon.k8s.types import Json

from tests.reference.inventory import Card

TYPE_KEYS = {
    "NVIDIA": ("nvidia.com/use-gputype", "nvidia.com/nouse-gputype"),
    "AMD": ("amd.com/use-gputype", "amd.com/nouse-gputype"),
    "DCU": ("hygon.com/use-dcutype", "hygon.com/nouse-dcutype"),
}


UUID_KEYS = {
    "NVIDIA": [("nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid")],
    "AMD": [("amd.com/use-gpu-uuid", "amd.com/nouse-gpu-uuid")],
    "MLU": [("cambricon.com/use-gpuuuid", "cambricon.com/nouse-gpuuuid")],
    "DCU": [("hygon.com/use-gpuuuid", "hygon.com/nouse-gpuuuid")],
    "Mthreads": [("mthreads.ai/use-gpuuuid", "mthreads.ai/nouse-gpuuuid")],
    "Metax-GPU": [],
    "Metax-SGPU": [("metax-tech.com/use-gpuuuid", "metax-tech.com/nouse-gpuuuid")],
    "kunlun": [
        ("hami.io/use-xpu-uuid", "hami.io/no-use-xpu-uuid"),
        ("baidu.com/use-gpuuuid", "baidu.com/nouse-gpuuuid"),
    ],
    "XPU": [
        ("hami.io/use-xpu-uuid", "hami.io/no-use-xpu-uuid"),
        ("baidu.com/use-gpuuuid", "baidu.com/nouse-gpuuuid"),
    ],
    "Enflame": [("enflame.com/use-gpuuuid", "enflame.com/nouse-gpuuuid")],
    "GCU": [],
    "AWSNeuron": [("aws.amazon.com/use-neuron-uuid", "aws.amazon.com/nouse-neuron-uuid")],
    "Vastai": [("vastaitech.com/use-gpuuuid", "vastaitech.com/nouse-gpuuuid")],
    "Biren": [("birentech.com/use-gpuuuid", "birentech.com/nouse-gpuuuid")],
}


def uuid_keys(vendor: str) -> list[tuple[str, str]]:
    """Pairs of annotation keys (use, avoid); Ascend's and Iluvatar's contain the chip's name."""
    return UUID_KEYS.get(vendor, [(f"hami.io/use-{vendor}-uuid", f"hami.io/no-use-{vendor}-uuid")])


def entries(annotations: Json, key: str) -> list[str]:
    """A comma list; a blank value is none."""
    value = annotations.get(key, "")
    return [entry.strip() for entry in value.split(",")] if value.strip() else []


def type_allowed(card: Card, annotations: Json) -> bool:
    """Sheet 1.0.2, and for NVIDIA the mode."""
    name = card["type"].upper()
    use_key, avoid_key = TYPE_KEYS.get(card["vendor"], ("", ""))
    use, avoid = entries(annotations, use_key), entries(annotations, avoid_key)
    if use and not any(entry and entry.upper() in name for entry in use):
        return False
    if any(entry and entry.upper() in name for entry in avoid):
        return False
    if card["vendor"] == "NVIDIA":
        mode = annotations.get("nvidia.com/vgpu-mode", "")
        return not mode or card["mode"] in mode
    return True


def uuid_allowed(card: Card, annotations: Json) -> bool:
    """Sheet 1.0.2: all pairs must pass."""
    for use_key, avoid_key in uuid_keys(card["vendor"]):
        use = entries(annotations, use_key)
        if use and card["id"] not in use:
            return False
        if card["id"] in entries(annotations, avoid_key):
            return False
    return True


def numa_bound(annotations: Json) -> bool:
    """Return whether Go's ParseBool takes the annotation for true."""
    value = annotations.get("nvidia.com/numa-bind", "")
    return value in ("1", "t", "T", "TRUE", "true", "True")


def policies(annotations: Json, default: str = "spread") -> list[str]:
    """The card policies in the order written."""
    return entries(annotations, "hami.io/gpu-scheduler-policy") or [default]
