"""Columns and images: derivatives and batching of weft::im2col and col2im, each the gradient of the other."""
from __future__ import annotations

from .._rules import larger_batch, linear

im2col = linear("im2col", "col2im", lambda input, kernel_size, *rest: (input.shape[-len(kernel_size):], kernel_size, *rest),
                larger_batch("im2col", unbatched=lambda kernel_size, *rest: len(kernel_size) + 1))
col2im = linear("col2im", "im2col", lambda input, size, *settings: settings,
                larger_batch("col2im", unbatched=lambda size, *settings: 2 if settings[-1] else 2 * len(size) + 1))
