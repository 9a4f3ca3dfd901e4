"""Nothing that the newest CUDA's headers have is unknown here: each call, version and place.

When one fails after the pin of nvidia-cuda-runtime was raised: native/libvgpu/README.md
("A new CUDA").
"""

import re

import pytest

from tests.native.allocators.conformance import DOCUMENT
from tests.native.cuda_headers import (
    cuda_version,
    entry_points,
    enumerators,
    headers,
    list_functions,
)
from tests.native.driver_calls import Request, hooks, requests
from tests.native.machine import ROOT

ABI = (ROOT / "native/libvgpu/include/cuda_abi.h").read_text()


def list_known_calls() -> set[Request]:
    return set(requests("driver-calls.txt"))


def unknown(typedefs: str) -> list[str]:
    missing = sorted(entry_points(typedefs) - list_known_calls())
    return [f"{each.name} {each.version} {each.flags}" for each in missing]


def test_every_entry_point_is_altered_or_listed_as_passing() -> None:
    assert unknown("\n".join(headers().values())) == []


def test_the_list_names_no_call_that_the_headers_have_not() -> None:
    assert list_known_calls() <= entry_points("\n".join(headers().values()))


def test_every_function_that_is_declared_is_in_the_list() -> None:
    assert list_functions(headers()["cuda.h"]) - {each.name for each in list_known_calls()} == set()


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        ("PFN_cuMemTakeMore_v13060)(size_t bytes);", "cuMemTakeMore 13060 0"),
        ("PFN_cuMemCreate_v13060)(size_t bytes);", "cuMemCreate 13060 0"),
        ("PFN_cuMemCreate_v13060_ptsz)(CUstream s);", "cuMemCreate 13060 2"),
        ("PFN_cuMemTakeMore_v13060_ptds)(CUdeviceptr p);", "cuMemTakeMore 13060 2"),
    ],
)
def test_a_call_or_version_of_a_newer_header_is_reported(line: str, reported: str) -> None:
    newer = f"{headers()['cudaTypedefs.h']}\ntypedef CUresult (CUDAAPI *{line}\n"
    assert unknown(newer) == [reported]


@pytest.mark.parametrize("enumeration", ["CUmemLocationType", "CUmemAllocationType"])
def test_every_place_and_type_of_memory_is_in_our_header(enumeration: str) -> None:
    values = enumerators(headers()["cuda.h"], enumeration)
    assert values
    ours = {name: int(value) for name, value in re.findall(r"\b(CU_MEM_\w+) = (\d+)\b", ABI)}
    same_as_invalid = {name for name, value in values.items() if value == 0}
    assert {name: ours.get(name) for name in values.keys() - same_as_invalid} == {
        name: value for name, value in values.items() if name not in same_as_invalid
    }


# Only those that allocate, in a child graph too, are charged (memory/graph_memory.c); the graph in
# a conditional node may not have one.
GRAPH_NODES = """KERNEL MEMCPY MEMSET HOST GRAPH EMPTY WAIT_EVENT EVENT_RECORD EXT_SEMAS_SIGNAL
    EXT_SEMAS_WAIT MEM_ALLOC MEM_FREE BATCH_MEM_OP CONDITIONAL MEMCPY_BATCH RESERVED_16
    EXTERNAL_ENGINE FABRIC_CPY_BATCH"""


def test_no_node_of_a_graph_is_unknown() -> None:
    nodes = enumerators(headers()["cuda.h"], "CUgraphNodeType")
    assert {f"CU_GRAPH_NODE_TYPE_{name}" for name in GRAPH_NODES.split()} == set(nodes)


def test_the_pages_name_the_cuda_that_was_looked_at() -> None:
    version = f"CUDA {cuda_version(headers()['cuda.h'])}"
    assert DOCUMENT.read_text().startswith(f"# What libvgpu does with every call of {version}\n")
    assert version in (ROOT / "native/libvgpu/README.md").read_text()
    assert version in (ROOT / "tests/native/data/driver-calls.txt").read_text()


def test_what_is_altered_is_a_call_of_the_headers() -> None:
    assert {hook.request for hook in hooks()} <= entry_points("\n".join(headers().values()))
