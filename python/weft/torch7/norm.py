"""Normalisation."""
from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.fx import Proxy

from .. import nn
from ..nn._named import made
from ._base import Torch7, check_flags, check_ints, check_reals, leaf

__all__ = ["BatchNormalization", "SpatialBatchNormalization", "SpatialCrossMapLRN", "VolumetricBatchNormalization"]


class _BatchNormalization(Torch7):
    """Constructor and printing."""

    def __init__(self, nFeature: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True, *, device: Any = None, dtype: Any = None) -> None:
        check_ints(1, nFeature=nFeature)
        check_reals(eps=eps, momentum=momentum)
        check_flags(affine=affine)
        super().__init__(nFeature, eps, momentum, affine, device=device, dtype=dtype)   # type: ignore[call-arg]

    def extra_repr(self: Any) -> str:
        settings = (("eps", 1e-5), ("momentum", 0.1), ("affine", True))
        return ", ".join([str(self.num_features), *(f"{name}={getattr(self, name)}" for name, default in settings if getattr(self, name) != default)])


BatchNormalization = made("BatchNormalization", (_BatchNormalization, nn.BatchNorm1d), "Batch normalisation of (N, C).",
                          "weft.torch7.BatchNormalization(4)(torch.randn(8, 4)).shape", (8, 4))
SpatialBatchNormalization = made("SpatialBatchNormalization", (_BatchNormalization, nn.BatchNorm2d), "Batch normalisation of (N, C, H, W).",
                                 "weft.torch7.SpatialBatchNormalization(4, 1e-3, 0.01)",
                                 "weft.SpatialBatchNormalization(4, eps=0.001, momentum=0.01)")
VolumetricBatchNormalization = made("VolumetricBatchNormalization", (_BatchNormalization, nn.BatchNorm3d), "Batch normalisation of (N, C, T, H, W).",
                                    "weft.torch7.VolumetricBatchNormalization(4, affine=False)(torch.randn(2, 4, 3, 5, 5)).shape", (2, 4, 3, 5, 5))


class SpatialCrossMapLRN(Torch7, nn.LocalResponseNorm):
    """x / (k + alpha / size * s)^beta, with s the sum of squares of `size` channels around each, of (N, C, H, W) or (C, H, W).

        >>> weft.torch7.SpatialCrossMapLRN()
        weft.SpatialCrossMapLRN(5, alpha=0.0001, beta=0.75, k=1)
    """

    def __init__(self, size: int = 5, alpha: float = 1e-4, beta: float = 0.75, k: float = 1) -> None:
        check_ints(1, size=size)
        check_reals(alpha=alpha, beta=beta, k=k)
        super().__init__(size, alpha, beta, k)

    def forward(self, input: Tensor) -> Tensor:
        if isinstance(input, Proxy):
            return leaf(self, input)
        if not isinstance(input, Tensor):
            raise TypeError(f"SpatialCrossMapLRN: input is {type(input).__name__}, allowed: Tensor")
        if input.dim() not in (3, 4):
            raise RuntimeError(f"SpatialCrossMapLRN: input has {input.dim()} dimensions {list(input.shape)}, allowed: 3 (unbatched) or 4 (batched)")
        return super().forward(input) if input.dim() == 4 else super().forward(input.unsqueeze(0)).squeeze(0)
