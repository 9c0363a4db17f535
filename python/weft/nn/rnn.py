"""Recurrent modules. torch.compile runs them between its graphs, as it does their twins; a tracer of torch.fx keeps them whole."""
from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor
from torch.fx import Proxy
from torch.nn.utils.rnn import PackedSequence

from ..functional import rnn as _functions
from ._named import Named, kept_whole, made

__all__ = ["GRU", "LSTM", "RNN"]


class _Recurrent(Named):
    """What RNN, LSTM and GRU add to their twins: forward, written once. Checks of sizes are the twins' own methods."""

    def _zeros(self: Any, x: Tensor, many: Any) -> Any:
        stack = self.num_layers * (2 if self.bidirectional else 1)
        h = torch.zeros(stack, many, self.proj_size or self.hidden_size, dtype=x.dtype, device=x.device)
        return (h, torch.zeros(stack, many, self.hidden_size, dtype=x.dtype, device=x.device)) if self.mode == "LSTM" else h

    def _states(self: Any, hx: Any, unbatched: bool) -> Any:
        """Given states with a batch of one where the input has none."""
        given, rank = (hx[0], hx[1]) if self.mode == "LSTM" else (hx,), 2 if unbatched else 3
        if any(t.dim() != rank for t in given):
            raise RuntimeError(f"hx: has {' and '.join(str(t.dim()) for t in given)} dimensions, allowed: {rank}, as the input is "
                               f"{'unbatched' if unbatched else 'batched'}")
        if unbatched:
            given = tuple(t.unsqueeze(1) for t in given)
        return given if self.mode == "LSTM" else given[0]

    def forward(self: Any, input: Union[Tensor, PackedSequence], hx: Optional[Any] = None) -> tuple[Any, Any]:
        if isinstance(input, Proxy):
            return kept_whole(self, input, hx)   # type: ignore[return-value]
        self._update_flat_weights()
        lstm, packed, unbatched = self.mode == "LSTM", isinstance(input, PackedSequence), False
        x, batch_sizes, order, back = input if packed else (input, None, None, None)
        if not packed:
            if x.dim() not in (2, 3):
                raise ValueError(f"{type(self).__name__}: input has {x.dim()} dimensions {list(x.shape)}, allowed: 2 (unbatched) or 3 (batched)")
            unbatched = x.dim() == 2
            if unbatched:
                x = x.unsqueeze(0 if self.batch_first else 1)
        if hx is None:
            hx = self._zeros(x, batch_sizes[0] if packed else x.size(0 if self.batch_first else 1))
        elif packed:
            hx = self.permute_hidden(hx, order)
        else:
            hx = self._states(hx, unbatched)
        if not (lstm and packed):   # there the twin leaves the check to its function
            self.check_forward_args(x, hx, batch_sizes)
        function = getattr(_functions, self.mode.lower())
        settings = (self._flat_weights, self.bias, self.num_layers, self.dropout, self.training, self.bidirectional)
        run, given = _functions.prepare(function, (x, hx, *settings, self.batch_first) if batch_sizes is None else (x, batch_sizes, hx, *settings), {})
        y, *last = run(*given)
        hidden = tuple(last) if lstm else last[0]
        if packed:
            return PackedSequence(y, batch_sizes, order, back), self.permute_hidden(hidden, back)
        if unbatched:
            return y.squeeze(0 if self.batch_first else 1), tuple(t.squeeze(1) for t in last) if lstm else hidden.squeeze(1)
        return y, hidden


RNN = made("RNN", (_Recurrent, torch.nn.RNN), "torch.nn.RNN computed by weft.",
           'weft.nn.RNN(4, 6, num_layers=2, nonlinearity="relu")(torch.randn(5, 3, 4))[0].shape', (5, 3, 6))
LSTM = made("LSTM", (_Recurrent, torch.nn.LSTM), "torch.nn.LSTM computed by weft.",
            "weft.nn.LSTM(4, 6, proj_size=2, bidirectional=True)(torch.randn(5, 3, 4))[0].shape", (5, 3, 4))
GRU = made("GRU", (_Recurrent, torch.nn.GRU), "torch.nn.GRU computed by weft.",
           "weft.nn.GRU(4, 6, batch_first=True)(torch.randn(3, 5, 4))[0].shape", (3, 5, 6))
