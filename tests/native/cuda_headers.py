"""The driver of the newest CUDA that was looked at, as NVIDIA's headers describe it.

They come with the wheel nvidia-cuda-runtime, which requirements/dev.txt pins.
"""

import re
from functools import cache
from importlib import metadata
from pathlib import Path

from tests.native.driver_calls import Request

PACKAGE = "nvidia-cuda-runtime"
# PFN_cuMemAllocAsync_v11020_ptsz: what cuGetProcAddress is asked for.
REQUEST = re.compile(r"\(CUDAAPI \*PFN_(cu\w+?)_v(\d+)(_pt[sd][sz])?\)")
DECLARED = re.compile(r"\bCUDAAPI\s+(cu[A-Z]\w*)\s*\(")
WINDOWS_ALONE = re.compile(r"^#ifdef _WIN32$.*?^#endif", re.DOTALL | re.MULTILINE)
VERSION_SUFFIX = re.compile(r"(_v\d)?(_pt[sd][sz])?$")


@cache
def headers() -> dict[str, str]:
    """The text of each header that is about the driver, by file name."""
    found = {}
    for file in metadata.files(PACKAGE) or []:
        if file.name == "cuda.h" or re.fullmatch(r"cuda\w*Typedefs\.h", file.name):
            found[file.name] = Path(str(file.locate())).read_text()
    return found


def cuda_version(header: str) -> str:
    """For example 13.5, of `#define CUDA_VERSION 13050`."""
    number = int(re.findall(r"^#define CUDA_VERSION (\d+)$", header, re.MULTILINE)[0])
    return f"{number // 1000}.{number % 1000 // 10}"


def entry_points(typedefs: str) -> set[Request]:
    """The entry points that a program on Linux may ask the driver for."""
    rows = REQUEST.findall(WINDOWS_ALONE.sub("", typedefs))
    return {Request(name, int(version), 2 if stream else 0) for name, version, stream in rows}


def list_functions(header: str) -> set[str]:
    """Names of the functions that cuda.h declares, without version and stream."""
    return {VERSION_SUFFIX.sub("", name) for name in DECLARED.findall(header)}


def enumerators(header: str, enumeration: str) -> dict[str, int]:
    """The values of an enumeration of cuda.h but the one that ends it."""
    body = re.findall(
        rf"typedef enum {enumeration}_enum \{{(.*?)\n\}} {enumeration};", header, re.DOTALL
    )
    bare = re.sub(r"/\*.*?\*/", "", body[0], flags=re.DOTALL)
    values = re.findall(r"(CU_\w+)\s*=\s*(\w+)", bare)
    return {name: int(value, 0) for name, value in values if not name.endswith("_MAX")}
