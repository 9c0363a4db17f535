"""LeNet-5 (LeCun et al. 1998, Gradient-Based Learning Applied to Document Recognition) in today's usual form.

Beside the paper: C3 sees all six maps instead of a table of subsets, the average pools have no weights, the output is linear instead of radial basis functions.
"""
from __future__ import annotations

from torch import nn


def lenet5(num_classes: int = 10) -> nn.Sequential:
    """LeNet-5 for 1x32x32 images, 61,706 parameters. Weights are uniform within 2.4 / fan_in, the paper's appendix A.

    >>> import torch
    >>> lenet5()(torch.zeros(1, 1, 32, 32)).shape
    torch.Size([1, 10])
    """
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2),
        nn.Conv2d(16, 120, 5), nn.Tanh(), nn.Flatten(),
        nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, num_classes),
    )
    for module in model:
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            bound = 2.4 / module.weight[0].numel()
            nn.init.uniform_(module.weight, -bound, bound)
            nn.init.uniform_(module.bias, -bound, bound)
    return model
