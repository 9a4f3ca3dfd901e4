"""A tensor of one GiB in two processes of PyTorch."""

# mypy: ignore-errors

import json

import torch
import torch.multiprocessing as mp

WAIT_S = 100


def child(tensors, answers):
    tensor = tensors.get()
    answers.put((float(tensor.sum()), torch.cuda.mem_get_info()[0]))
    tensors.get()


if __name__ == "__main__":
    mp.set_start_method("spawn")
    tensors, answers = mp.Queue(), mp.Queue()
    process = mp.Process(target=child, args=(tensors, answers))
    process.start()
    tensor = torch.ones(1 << 28, device="cuda")
    tensors.put(tensor)
    total, free = answers.get(timeout=WAIT_S)
    tensors.put(None)
    process.join(WAIT_S)
    print(json.dumps({"sum": total, "child_free": free, "exit": process.exitcode}))
