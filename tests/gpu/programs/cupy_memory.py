"""CuPy takes all memory it gets, in blocks of 64 MiB, and runs its own kernel."""

# mypy: ignore-errors

import json

import cupy

BLOCK = 64 << 20
MAX_BLOCKS = 2000
SOURCE = 'extern "C" __global__ void twice(float *x) { x[threadIdx.x] *= 2; }'

ones = cupy.ones(32, dtype=cupy.float32)
cupy.RawKernel(SOURCE, "twice")((1,), (32,), (ones,))
raw = float(ones.sum())
held, caught = [], None
try:
    while len(held) < MAX_BLOCKS:
        held.append(cupy.empty(BLOCK, dtype=cupy.uint8))
except cupy.cuda.memory.OutOfMemoryError as error:
    caught = str(error)
print(json.dumps({"taken": BLOCK * len(held), "caught": caught, "raw": raw}))
