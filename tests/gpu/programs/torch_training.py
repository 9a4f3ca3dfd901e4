"""PyTorch trains a small network, records a graph and replays it."""

# mypy: ignore-errors

import json

import torch
from torch import nn

torch.manual_seed(0)
torch.backends.cudnn.deterministic = True
model = nn.Sequential(
    nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 30 * 30, 10)
).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
images = torch.randn(64, 3, 32, 32, device="cuda")
labels = torch.randint(0, 10, (64,), device="cuda")
losses = []
for _ in range(5):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    losses.append(round(float(loss), 3))

graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
with torch.no_grad():
    with torch.cuda.stream(stream):
        for _ in range(3):
            model(images)
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        replayed = model(images)
    plain = model(images).clone()
replayed.zero_()
graph.replay()
torch.cuda.synchronize()
print(json.dumps({"losses": losses, "graph": bool(torch.allclose(plain, replayed, atol=1e-3))}))
