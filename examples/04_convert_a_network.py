"""What one learns: weft.convert swaps the modules of a network for weft's, in place; it can measure first, fuse, and go back.

    python examples/04_convert_a_network.py
"""
import torch
from torch import nn

import weft

torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False),
                    nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 64, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).eval()
x = torch.randn(4, 3, 64, 64)
printed, state = str(net), {name: value.clone() for name, value in net.state_dict().items()}

with torch.no_grad():
    expected = net(x)

    # What is expected to get faster. Parameters stay the same objects: an optimiser goes on.
    weight = net[2].weight
    print(weft.convert(net)[2], "the same parameters:", net[2].weight is weight)

    # Everything that weft has a module for, but for some of it.
    weft.convert(net, exclude=lambda module: isinstance(module, nn.ReLU), all=True)
    print(net[0], net[1])

    # Only what gets faster here, on this input. The table says what was measured.
    weft.convert(net, to="torch")
    weft.convert(net, example=x)

    # A normalisation folded into its convolution, and the activation behind it. state_dict() does not change.
    weft.convert(net, fuse=True)
    print(net[2])
    print(f"fused: largest difference {(net(x) - expected).abs().max():.1e}")

    # Back.
    weft.convert(net, to="torch")
    same = str(net) == printed and torch.equal(net(x), expected) and all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    print("back again, bit for bit:", same)
