"""Table of pod annotations: who writes and reads each, allowed values, effect of a wrong one.

Only an annotation's row reads what users write (`UserAnnotation.read`), so that parsing, the
sentence of a refusal or a warning, and the reference cannot differ. Rows of one vendor are in its
module (`AnnotationKeys`); `vendors/annotation_table.py` puts all of them together. Formats of the
services' annotations are in `annotations.py`. libs/hamicommon/add-a-rule.md explains an example.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from hamicommon.clipping import clip
from hamicommon.domain.requests import ScoreWeights
from hamicommon.errors import InvalidRequest
from hamicommon.k8s import annotations as keys
from hamicommon.k8s.annotations import is_true, split_list

T = TypeVar("T")

_COUNT = re.compile(r"[0-9]{1,10}")
MAX_DELAY_S = 86_400
MAX_GROUP_MIN = 1000
"""Members that one group may want: placing so many takes about a second."""
FLAGS = ("1", "t", "T", "TRUE", "true", "True", "0", "f", "F", "FALSE", "false", "False")


@dataclass(frozen=True, slots=True)
class PodAnnotation:
    """Annotation that only the services write on pods."""

    name: str
    writer: Literal["webhook", "scheduler"]
    reader: str
    holds: str
    """Meaning of the value, for documentation."""
    is_dropped: bool = True
    """Whether the webhook drops it from pods that are created with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserAnnotation(Generic[T]):
    """Annotation that users write on pods or templates."""

    name: str
    parse: Callable[[str], T]
    """Function that reads the value. Raises ValueError if admission should refuse the pod."""
    wanted: str
    """Allowed values, after `expected`."""
    holds: str
    """Meaning of the value, for documentation."""
    reader: str = "scheduler, webhook"
    example: str = ""
    refusal: str = ""
    """HAMi's text for a refused value, if it has one: `must be set one of [a, b]`."""
    is_known: Callable[[str], bool] = lambda text: True
    """Function that returns False for a value that is admitted with a warning."""
    is_list: bool = False
    """Whether the value is a comma list, each entry of which `is_known` checks."""
    otherwise: str = ""
    """Effect of an unknown value, for the warning."""
    in_claims: bool = False
    """Whether a ResourceClaim can express it; a pod with any other annotation is not converted."""

    def read(self, annotations: Mapping[str, str]) -> T | None:
        """Return the value on the pod; None if it has none.

        Raises: InvalidRequest with name, value and what would be right.
        """
        text = annotations.get(self.name)
        if text is None:
            return None
        try:
            return self.parse(text)
        except ValueError as exc:
            theirs = f"{self.name} {self.refusal}, not '{clip(text)}'"
            raise InvalidRequest(theirs if self.refusal else self._sentence(text)) from exc

    def remarks(self, annotations: Mapping[str, str]) -> Iterator[str]:
        """Yield a warning for each value that is admitted although it is unknown."""
        text = annotations.get(self.name, "")
        for entry in split_list(text) if self.is_list else (text,):
            if entry and not self.is_known(entry):
                yield f"{self._sentence(entry)}; {self.otherwise}"

    @property
    def effect(self) -> str:
        """Return the effect of a wrong value, for documentation."""
        if self.otherwise:
            return f"a warning; {self.otherwise}"
        return "" if self.parse in (str, split_list) else "the pod is refused"

    def _sentence(self, text: str) -> str:
        example = f", for example {self.example}" if self.example else ""
        verb = "has" if self.is_list else "is"
        return f"annotation {self.name} {verb} '{clip(text)}': expected {self.wanted}{example}"


def one_of(names: tuple[str, ...]) -> str:
    """Return the names as `a, b or c`."""
    return f"{', '.join(names[:-1])} or {names[-1]}"


def choice(*values: str) -> Callable[[str], str]:
    """Return a parser that accepts only these values."""

    def parse(text: str) -> str:
        if text not in values:
            raise ValueError(text)
        return text

    return parse


def flag(text: str) -> bool:
    """Parse a boolean as Go's ParseBool does. Raises: ValueError."""
    if text not in FLAGS:
        raise ValueError(text)
    return is_true(text)


def card_list(name: str, holds: str) -> UserAnnotation[tuple[str, ...]]:
    """Return the table's row for a comma list of uuids or types."""
    return UserAnnotation(
        name=name,
        parse=split_list,
        wanted="a comma list",
        holds=holds,
        in_claims=True,
    )


NODE_POLICIES = ("binpack", "spread", "fragmentation")
CARD_POLICIES = ("binpack", "spread", "topology-aware", "mutex", "numa", "fragmentation")
CARD_MODES = ("hami-core", "mig", "mps")


def _node_policy(text: str) -> str:
    """Parse a node policy: an unknown one is binpack, as in HAMi; empty stays empty."""
    policy = text.strip()
    return policy if policy in NODE_POLICIES or not policy else "binpack"


def _weights(text: str) -> ScoreWeights:
    found: dict[str, int] = {}
    for entry in text.split(","):
        name, _, value = (part.strip() for part in entry.partition("="))
        if name not in ("slot", "core", "memory") or name in found or not _COUNT.fullmatch(value):
            raise ValueError(text)
        found[name] = int(value)
    if len(found) != 3 or not any(found.values()) or max(found.values()) > 2**31 - 1:
        raise ValueError(text)
    return ScoreWeights(**found)


def _seconds(text: str) -> int:
    if not _COUNT.fullmatch(text) or int(text) > MAX_DELAY_S:
        raise ValueError(text)
    return int(text)


def _members(text: str) -> int:
    if not _COUNT.fullmatch(text) or not 1 <= int(text) <= MAX_GROUP_MIN:
        raise ValueError(text)
    return int(text)


FRONT_END = UserAnnotation(
    name="hami.io/front-end",
    parse=str,
    wanted="limits or dra",
    holds="`dra`: what the pod asks for by limits becomes a ResourceClaim; also a label of "
    "namespaces",
    reader="webhook",
    is_known=lambda text: text in ("limits", "dra"),
    otherwise="the pod keeps its limits",
    in_claims=True,
)
PRELOAD = UserAnnotation(
    name="hami.io/preload",
    parse=choice("true", "false"),
    wanted="true or false",
    holds="`false`: the pod has whole cards only and runs without libvgpu; `true`: with it, also "
    "where the node would leave it out",
    reader="node-agent, webhook",
    in_claims=True,
)
NODE_POLICY = UserAnnotation(
    name="hami.io/node-scheduler-policy",
    parse=_node_policy,
    wanted=one_of(NODE_POLICIES),
    holds="how to choose among nodes that fit; `fragmentation` chooses the cards, too, unless the "
    "pod names a card policy",
    is_known=lambda text: text.strip() in ("", *NODE_POLICIES),
    otherwise="it is taken as binpack",
)
GPU_POLICY = UserAnnotation(
    name="hami.io/gpu-scheduler-policy",
    # Empty entries stay: `binpack,` is a list and so ordered as one (protocol 4.6).
    parse=split_list,
    wanted=f"a comma list of {', '.join(CARD_POLICIES)}",
    holds="how to choose among a node's cards, in order; `mutex` takes idle cards only",
    is_known=lambda entry: entry in CARD_POLICIES,
    is_list=True,
    otherwise="the unknown entry is left out, and without another one it is taken as spread",
)
SCORING_WEIGHTS = UserAnnotation(
    name="hami.io/device-scoring-weights",
    parse=_weights,
    wanted="each of slot, core and memory once, with a whole number, not all 0",
    holds="weights of the three amounts in a card's score",
    example="slot=1,core=1,memory=1",
)
PREEMPTION_DELAY = UserAnnotation(
    name="hami.io/preemption-delay-seconds",
    parse=_seconds,
    wanted="a whole number of seconds, 86400 at most",
    holds="how long the pod waits before pods are preempted for it, if that is more than the "
    "setting; gives an autoscaler time to add a node",
    reader="scheduler",
    example="120",
    in_claims=True,
)
GROUP_MIN = UserAnnotation(
    name="hami.io/group-min",
    parse=_members,
    wanted=f"a whole number from 1 to {MAX_GROUP_MIN}",
    holds="how many pods of the label `scheduling.x-k8s.io/pod-group` start together; of several "
    "numbers in one group the largest counts",
    example="8",
    in_claims=True,
)
NVIDIA_NUMA_BIND = UserAnnotation(
    name="nvidia.com/numa-bind",
    parse=is_true,
    wanted="true or false",
    holds="cards are ordered by NUMA node; those of NVIDIA in one container are all of one",
    is_known=lambda text: text in FLAGS,
    otherwise="it is taken as false",
)
NVIDIA_MODE = UserAnnotation(
    name="nvidia.com/vgpu-mode",
    parse=str,
    wanted=f"{', '.join(CARD_MODES)} or a list of them",
    holds="modes of cards that the pod takes",
    is_known=lambda text: any(mode in text for mode in CARD_MODES),
    otherwise="no card of another mode is given",
)

USER_ANNOTATIONS: tuple[UserAnnotation[Any], ...] = (
    NODE_POLICY,
    GPU_POLICY,
    SCORING_WEIGHTS,
    NVIDIA_NUMA_BIND,
    PREEMPTION_DELAY,
    GROUP_MIN,
    PRELOAD,
    FRONT_END,
)
"""Annotations that users may write on pods of every vendor."""

NVIDIA_ANNOTATIONS: tuple[UserAnnotation[Any], ...] = (NVIDIA_MODE,)
"""Annotations that users may write on pods with NVIDIA cards, except lists of cards."""

_PLUGINS = "HAMi's plugins and tools"
WRITTEN_ANNOTATIONS = (
    PodAnnotation(keys.ASSIGNED_NODE, "scheduler", _PLUGINS, "node of the pod; also a label"),
    PodAnnotation(keys.ASSIGNED_TIME, "scheduler", _PLUGINS, "Unix second of the decision"),
    PodAnnotation(
        keys.BIND_PHASE,
        "scheduler",
        f"scheduler, {_PLUGINS}",
        "`allocating`; a plugin of HAMi writes `success` or `failed`",
    ),
    PodAnnotation(keys.BIND_TIME, "scheduler", _PLUGINS, "Unix second of the binding"),
    PodAnnotation(
        keys.MIG_ALLOCATIONS,
        "scheduler",
        "node-agent, metrics",
        "reserved MIG instances, and their names once they are made",
    ),
    PodAnnotation(keys.GRANT, "scheduler", "node-agent", "signed grant"),
    PodAnnotation(
        keys.RETRY_AT,
        "scheduler",
        "kube-scheduler",
        "moment at which a waiting pod was changed, so that it is tried again",
    ),
    PodAnnotation(keys.TRACEPARENT, "webhook", "scheduler", "trace context of the admission"),
    PodAnnotation(keys.CREATED_BY, "webhook", "scheduler", "user who created the pod"),
    PodAnnotation(
        keys.CLAIM_SHAPE,
        "webhook",
        "scheduler",
        "amounts and selections of a converted pod's ResourceClaim; dropped from others",
        is_dropped=False,
    ),
    PodAnnotation(
        keys.KUEUE_WORKLOAD,
        "scheduler",
        "scheduler",
        "uid of the Kueue Workload for whose pods cards are kept for a moment",
        is_dropped=False,
    ),
)
"""Annotations that the services write, for every vendor."""
