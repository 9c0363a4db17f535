"""What one learns: modules of weft.nn are modules of torch.nn. The same code builds, loads, trains and saves them.

    python examples/03_modules_and_training.py
"""
import torch

import weft


def build(m):
    """A small depthwise separable net, from either library."""
    return torch.nn.Sequential(m.Conv2d(3, 16, 3, stride=2, padding=1), m.ReLU(), m.Conv2d(16, 16, 3, padding=1, groups=16), m.Conv2d(16, 32, 1),
                               m.BatchNorm2d(32), m.ReLU(), m.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 4))


def train(net, images, labels, steps=30):
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = weft.functional.cross_entropy(net(images), labels)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


torch.manual_seed(0)
labels = torch.arange(32) % 4
images = torch.randn(32, 3, 16, 16) + labels.view(-1, 1, 1, 1)          # a class is a brightness: easy to learn
theirs, ours = build(torch.nn), build(weft.nn)
ours.load_state_dict(theirs.state_dict())
print(ours)
print("state_dict keys are the same:", list(ours.state_dict()) == list(theirs.state_dict()))

curves = train(theirs, images, labels), train(ours, images, labels)
print(f"step       0: torch {curves[0][0]:.4f}  weft {curves[1][0]:.4f}")
print(f"last step: torch {curves[0][-1]:.4f}  weft {curves[1][-1]:.4f}")
print(f"curves differ by at most {max(abs(a - b) for a, b in zip(*curves)):.1e}")

# Mixed precision and compilation are PyTorch's, as for any module.
with torch.autocast("cpu", dtype=torch.bfloat16):
    print("under autocast:", ours[0](images).dtype)
