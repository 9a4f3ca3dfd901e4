"""Variables by which a container could bypass its slice of an NVIDIA card, or take whole cards.

HAMi's plugin and the node-agent read CUDA_DISABLE_CONTROL, the core policy and the priority from
the pod's spec. libvgpu reads the other variables of HAMi from the limits file; HAMi-core and nodes
with an older agent read them from the environment. NVIDIA's container runtime reads
NVIDIA_VISIBLE_DEVICES, and the dynamic linker loads the libraries of LD_AUDIT and LD_PRELOAD before
those of /etc/ld.so.preload. docs/admission.md has the whole table, also of unguarded variables.
"""

from __future__ import annotations

from hamicommon.k8s.annotations import is_true
from hamicommon.vendors.interface.vendor import GuardedVariable

CONTROL_ENV = "CUDA_DISABLE_CONTROL"
PRIORITY_ENV = "CUDA_TASK_PRIORITY"
CORE_POLICY_ENV = "GPU_CORE_UTILIZATION_POLICY"
VISIBLE_ENV = "NVIDIA_VISIBLE_DEVICES"
IMEX_ENV = "NVIDIA_IMEX_CHANNELS"
NO_CARDS = "none"
REQUEST_FOLDER = "/var/run/nvidia-container-devices"
"""Folder in containers; a mount below it makes the runtime give the card of that name.

It does so with `accept-nvidia-visible-devices-as-volume-mounts`.
"""

_DRIVER = ("libcuda.so", "libnvidia-ml.so")
_FALSE = frozenset({"", "0", "f", "F", "FALSE", "false", "False"})
_NOTHING_VISIBLE = frozenset({"", NO_CARDS, "void"})
MIN_PRIORITY = 1
"""Priority of a pod without the variable; a smaller number goes first (protocol 6.4)."""


def guarded_variables(
    *, count: str, memory: str, cores: str, priority: str, core_policy: str
) -> tuple[GuardedVariable, ...]:
    """Return the guarded variables for this configuration.

    `count` and the like are names of resources, `core_policy` is the installation's policy.
    """
    by_policy = core_policy.lower() == "disable"
    return (
        GuardedVariable(
            name=CONTROL_ENV,
            harmless=lambda value: not is_true(value),
            effect="it switches the limits off",
            with_whole_cards=True,
        ),
        GuardedVariable(
            name=CORE_POLICY_ENV,
            harmless=lambda value: by_policy or value.strip().lower() != "disable",
            effect="it switches the limit of cores off",
        ),
        GuardedVariable(
            name="CUDA_DEVICE_MEMORY_LIMIT",
            numbered=True,
            harmless=_never,
            effect=f"the memory is what {memory or count} asks for",
        ),
        GuardedVariable(
            name="CUDA_DEVICE_SM_LIMIT",
            numbered=True,
            harmless=_never,
            effect=f"the share of cores is what {cores or count} asks for",
        ),
        GuardedVariable(
            name="CUDA_DEVICE_MEMORY_SHARED_CACHE",
            harmless=_never,
            effect="it gives each process a slice of its own",
        ),
        GuardedVariable(
            name="CUDA_OVERSUBSCRIBE",
            harmless=_FALSE.__contains__,
            effect="it lifts the limit of memory",
        ),
        GuardedVariable(
            name="LD_AUDIT",
            harmless=_is_empty,
            effect="it can keep the limits from being loaded",
        ),
        GuardedVariable(
            name="LD_PRELOAD",
            harmless=lambda value: not _names_driver(value),
            effect="it loads the driver in front of the limits",
        ),
        GuardedVariable(
            name=PRIORITY_ENV,
            harmless=lambda value: _as_c_reads(value) >= MIN_PRIORITY,
            effect=f"it goes before other pods on their cards ({priority or PRIORITY_ENV})",
            needs="priority",
            instead=str(MIN_PRIORITY),
        ),
        GuardedVariable(
            name=VISIBLE_ENV,
            harmless=_NOTHING_VISIBLE.__contains__,
            effect=f"cards come with {count} and no other way",
            without_card=True,
            instead=NO_CARDS,
        ),
        GuardedVariable(
            name=IMEX_ENV,
            harmless=_NOTHING_VISIBLE.__contains__,
            effect="it opens the channels by which jobs of several nodes share memory",
            # The runtime also reads it in a container that sees no card.
            without_card=True,
        ),
    )


def _never(value: str) -> bool:
    return False


def _is_empty(value: str) -> bool:
    return not value


def _names_driver(value: str) -> bool:
    """Return whether a list for the dynamic linker (colons or spaces) names the driver."""
    entries = value.replace(":", " ").split()
    return any(entry.rpartition("/")[2].startswith(_DRIVER) for entry in entries)


def _as_c_reads(value: str) -> int:
    """Return the number that C's atoi reads, as HAMi-core does; empty text gives `MIN_PRIORITY`."""
    text = value.strip()
    if not text:
        return MIN_PRIORITY
    sign = -1 if text.startswith("-") else 1
    digits = ""
    for character in text.removeprefix("-" if sign < 0 else "+"):
        if character not in "0123456789":
            break
        digits += character
    return sign * int(digits[:9] or "0")
