"""PyTorch takes all memory it gets, in blocks of 64 MiB; then it continues."""

# mypy: ignore-errors

import json

import torch

BLOCK = 64 << 20
MAX_BLOCKS = 2000

held, caught = [], None
try:
    while len(held) < MAX_BLOCKS:
        held.append(torch.empty(BLOCK, dtype=torch.uint8, device="cuda"))
except torch.cuda.OutOfMemoryError as error:
    caught = str(error)
taken = BLOCK * len(held)
free, total = torch.cuda.mem_get_info()
held.clear()
torch.cuda.empty_cache()
torch.cuda.synchronize()
print(
    json.dumps(
        {
            "taken": taken,
            "caught": caught,
            "free": free,
            "total": total,
            "properties": torch.cuda.get_device_properties(0).total_memory,
            "sum": float(torch.ones(1 << 20, device="cuda").sum()),
        }
    )
)
