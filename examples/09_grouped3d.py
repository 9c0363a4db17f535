"""What one learns: Grouped3D is a 3D convolution that searches the fastest kernels for its shapes and keeps what it found in a file.

    python examples/09_grouped3d.py
"""
import os

import torch

import weft

torch.manual_seed(0)
x = torch.randn(1, 8, 10, 10, 10)

# The first forward of a shape measures forward and backward kernels for at most so many seconds and stores the times.
tuned = weft.Grouped3D(8, 8, 3, groups=8, cache_file="volumes.wisdom", tuner_config={"seconds": 0.5, "progress": False})
tuned(x)
print("stored in volumes.wisdom:", os.path.exists("volumes.wisdom"))

# From then on the file is enough, here and on other machines that wrote to it.
ready = weft.Grouped3D(8, 8, 3, groups=8, from_cache=True, cache_file="volumes.wisdom")
ready.load_state_dict(tuned.state_dict())
expected = torch.nn.functional.conv3d(x, tuned.weight, groups=8)
print(f"largest difference {(ready(x) - expected).abs().max():.1e}")
ready(x).sum().backward()
print("gradient of the weights:", ready.weight.grad.shape)

# The old layout of the weights, (groups, C/groups, I/groups, kT, kH, kW), is a view, and a state_dict with it loads.
print("W:", tuple(ready.W.shape), ready.load_state_dict({"W": torch.rand(8, 1, 1, 3, 3, 3)}))

# A shape that is not in the file is an error that names it.
try:
    ready(torch.randn(2, 8, 5, 5, 5))
except RuntimeError as error:
    print(error)
