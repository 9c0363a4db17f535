"""ConvNeXt-T (Liu et al. 2022, arXiv:2201.03545)."""
from __future__ import annotations

import torch
from torch import nn

from .layers import StochasticDepth, round_depth, round_width

STAGES = ((96, 3), (192, 3), (384, 9), (768, 3))   # width, blocks


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of (N, C, H, W). The permuted views cost nothing in channels-last.

    >>> ChannelNorm(8)(torch.zeros(1, 8, 2, 2)).shape
    torch.Size([1, 8, 2, 2])
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(nn.Module):
    """x + scale * (depthwise 7x7, norm, 4x wider linear, GELU, linear); the linear layers see channels last.

    >>> Block(8, 0.0)(torch.zeros(1, 8, 4, 4)).shape
    torch.Size([1, 8, 4, 4])
    """

    def __init__(self, c: int, drop: float) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(c, c, 7, padding=3, groups=c)
        self.norm = nn.LayerNorm(c, eps=1e-6)
        self.expand = nn.Linear(c, 4 * c)
        self.act = nn.GELU()
        self.project = nn.Linear(4 * c, c)
        self.scale = nn.Parameter(torch.full((c,), 1e-6))
        self.drop = StochasticDepth(drop)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.project(self.act(self.expand(y)))
        return x + self.drop(y.permute(0, 3, 1, 2))


def convnext_t(num_classes: int = 1000, width: float = 1.0, depth: float = 1.0, stochastic_depth: float = 0.1) -> nn.Sequential:
    """ConvNeXt-T, 28.59 M parameters. The drop rate grows linearly to `stochastic_depth` over the blocks.

    >>> convnext_t(10, width=1 / 6, depth=1 / 3)(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 10])
    """
    widths = [round_width(channels, width) for channels, _ in STAGES]
    depths = [round_depth(blocks, depth) for _, blocks in STAGES]
    rates = iter(torch.linspace(0, stochastic_depth, sum(depths), device="cpu").tolist())
    layers: list[nn.Module] = []
    for stage, (c, blocks) in enumerate(zip(widths, depths)):
        if stage == 0:
            layers += [nn.Conv2d(3, c, 4, 4), ChannelNorm(c, eps=1e-6)]
        else:
            layers += [ChannelNorm(widths[stage - 1], eps=1e-6), nn.Conv2d(widths[stage - 1], c, 2, 2)]
        layers += [Block(c, next(rates)) for _ in range(blocks)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(widths[-1], eps=1e-6), nn.Linear(widths[-1], num_classes))
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.trunc_normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)
    return model
