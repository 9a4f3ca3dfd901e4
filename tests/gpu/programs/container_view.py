"""Print a container's view: its slice by CUDA, NVML and nvidia-smi, and processes."""

# mypy: ignore-errors

import ctypes
import json
import os
import subprocess

import pynvml

cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(256 << 20)) == 0
refused = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(2 << 30))
pynvml.nvmlInit()
card = pynvml.nvmlDeviceGetHandleByIndex(0)
memory = pynvml.nvmlDeviceGetMemoryInfo(card)
query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
shown = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout
print(
    json.dumps(
        {
            "pid": os.getpid(),
            "refused": refused,
            "total": memory.total,
            "used": memory.used,
            "pids": [one.pid for one in pynvml.nvmlDeviceGetComputeRunningProcesses(card)],
            "smi_mib": int(shown),
        }
    )
)
