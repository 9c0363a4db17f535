"""The inpainting U-Net of partial convolutions (Liu et al. 2018, arXiv:1804.07723), with the convolution as its plain definition."""
from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

WIDTHS = (64, 128, 256, 512, 512, 512, 512, 512)
KERNELS = (7, 5, 5)   # of the first levels; 3 below them


class PartialConv2d(nn.Module):
    """Convolution over the known points of x, scaled by the share of them in each window; a window without any gives 0 and stays a hole.

    S = conv(mask, ones), u = clamp(S, 0, 1), r = in_channels * window / (S + 1e-8) * u, y = (conv(x * mask) * r + bias) * u. The mask, 1 at known points, is
    (N, in_channels, H, W) or (N, 1, H, W); the new one, u, is (N, 1, Ho, Wo).

    >>> y, mask = PartialConv2d(3, 8, 3, padding=1)(torch.ones(1, 3, 4, 4), torch.zeros(1, 1, 4, 4))
    >>> y.shape, mask.sum()
    (torch.Size([1, 8, 4, 4]), tensor(0.))
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int = 0, bias: bool = True) -> None:
        super().__init__()
        self.stride, self.padding = stride, padding
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, kernel_size, kernel_size))
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None
        nn.init.normal_(self.weight, std=math.sqrt(2 / self.weight[0].numel()))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            ones = mask.new_ones(1, mask.shape[1], *self.weight.shape[2:])
            known = F.conv2d(mask, ones, None, self.stride, self.padding) * (self.weight.shape[1] // mask.shape[1])
            new_mask = known.clamp(0, 1)
            ratio = self.weight[0].numel() / (known + 1e-8) * new_mask
        y = F.conv2d(x * mask, self.weight, None, self.stride, self.padding) * ratio
        return (y if self.bias is None else (y + self.bias.view(-1, 1, 1)) * new_mask), new_mask

    def extra_repr(self) -> str:
        o, c, k, _ = self.weight.shape
        return f"{c}, {o}, kernel_size={k}, stride={self.stride}, padding={self.padding}, bias={self.bias is not None}"


class Level(nn.Module):
    """A partial convolution, then batch norm and an activation where the paper has them.

    >>> Level(3, 8, 3, 2, True, nn.ReLU())(torch.ones(1, 3, 4, 4), torch.ones(1, 1, 4, 4))[0].shape
    torch.Size([1, 8, 2, 2])
    """

    def __init__(self, c: int, o: int, kernel: int, stride: int, norm: bool, act: nn.Module) -> None:
        super().__init__()
        self.conv = PartialConv2d(c, o, kernel, stride, kernel // 2, bias=not norm)
        self.norm = nn.BatchNorm2d(o) if norm else nn.Identity()
        self.act = act

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, mask = self.conv(x, mask)
        return self.act(self.norm(x)), mask


class PartialUNet(nn.Module):
    """Strided levels down, nearest upsampling and skips up; the masks travel along. forward(image, mask) gives the whole image.

    >>> net = PartialUNet(3, (8, 16))
    >>> net(torch.ones(1, 3, 8, 8), torch.ones(1, 1, 8, 8)).shape
    torch.Size([1, 3, 8, 8])
    """

    def __init__(self, channels: int, widths: Sequence[int]) -> None:
        super().__init__()
        sizes = (channels, *widths)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        self.grow, self.grow_mask = nn.ModuleList(), nn.ModuleList()
        for i, (c, o) in enumerate(zip(sizes, widths)):
            self.down.append(Level(c, o, KERNELS[i] if i < len(KERNELS) else 3, 2, norm=i > 0, act=nn.ReLU(inplace=True)))
        for i, (o, c) in reversed(list(enumerate(zip(sizes, widths)))):
            self.up.append(Level(c + o, o, 3, 1, norm=i > 0, act=nn.LeakyReLU(0.2, inplace=True) if i > 0 else nn.Identity()))
            self.grow.append(nn.Upsample(scale_factor=2))
            self.grow_mask.append(nn.Upsample(scale_factor=2))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        step = 2 ** len(self.down)
        if x.shape[-2] % step or x.shape[-1] % step:
            raise ValueError(f"x: got {tuple(x.shape)}, allowed are heights and widths that are multiples of {step}")
        skips = []
        for level in self.down:
            skips.append((x, mask))
            x, mask = level(x, mask)
        for level, grow, grow_mask in zip(self.up, self.grow, self.grow_mask):
            skip, skip_mask = skips.pop()
            x, mask = grow(x), grow_mask(mask)
            # The two halves have different holes: the mask of the joined input has one plane per channel.
            mask = torch.cat((mask.expand_as(x), skip_mask.expand_as(skip)), 1)
            x, mask = level(torch.cat((x, skip), 1), mask)
        return x


def partial_unet(channels: int = 3, widths: Sequence[int] = WIDTHS) -> PartialUNet:
    """The U-Net, 32.86 M parameters; sides of the image are multiples of 2 ** len(widths), 256 by default. The weights start by He's rule, as the paper's.

    >>> partial_unet(widths=(8, 16))(torch.ones(1, 3, 8, 8), torch.ones(1, 1, 8, 8)).shape
    torch.Size([1, 3, 8, 8])
    """
    return PartialUNet(channels, widths)
