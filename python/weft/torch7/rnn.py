"""Recurrent layers: forward returns the output sequence alone, and the states are attributes."""
from __future__ import annotations

import warnings
from typing import Any, Optional, Union

from torch import Tensor
from torch.fx import Proxy
from torch.nn.utils.rnn import PackedSequence

from .. import nn
from ..nn._named import kept_whole, made
from .._core.arguments import check_flags, check_ints, check_reals
from ._base import Torch7

__all__ = ["BGRU", "BLSTM", "GRU", "LSTM", "RNNReLU", "RNNTanh"]


class _Recurrent(Torch7):
    """hiddenInput and cellInput: initial states, None for zeros. hiddenOutput and cellOutput: the final states of the last forward, without
    their history. With rememberStates these are where the next forward starts, if it has the same number of sequences."""

    hiddenInput: Optional[Tensor] = None
    cellInput: Optional[Tensor] = None
    hiddenOutput: Optional[Tensor] = None
    cellOutput: Optional[Tensor] = None
    rememberStates = False
    persistent = False

    def _build(self, inputDim: int, outputDim: int, numberOfLayers: int, batchFirst: bool, dropout: float, device: Any, dtype: Any, **settings: Any) -> None:
        check_ints(1, inputDim=inputDim, outputDim=outputDim, numberOfLayers=numberOfLayers)
        check_flags(batchFirst=batchFirst)
        check_reals(dropout=dropout)
        if not 0 <= dropout <= 1:
            raise ValueError(f"dropout: is {dropout}, allowed: 0 to 1")
        super().__init__(inputDim, outputDim, numberOfLayers, batch_first=batchFirst, dropout=dropout, device=device, dtype=dtype, **settings)   # type: ignore[call-arg]

    def setPersist(self, mode: bool = True) -> Any:
        """Ask for kernels that keep the weights on the chip. There is none yet: the first True of a module warns, and the standard kernel
        runs. Returns the module.

            >>> weft.torch7.GRU(4, 6, 1).setPersist(False)(torch.randn(5, 3, 4)).shape
            torch.Size([5, 3, 6])
        """
        check_flags(mode=mode)
        if mode and "persistent" not in vars(self):
            warnings.warn(f"{type(self).__name__}: there is no persistent kernel for it, the standard one runs", UserWarning, stacklevel=2)
        if mode or self.persistent:
            self.persistent = mode
        return self

    def resetStates(self) -> Any:
        """Forget the states, given and remembered: the next forward starts from zeros. Returns the module.

            >>> weft.torch7.LSTM(4, 6, 1, rememberStates=True).resetStates().hiddenOutput is None
            True
        """
        self.hiddenInput = self.cellInput = self.hiddenOutput = self.cellOutput = None
        return self

    def _start(self: Any, input: Any) -> Any:
        """The initial states as forward takes them; None for zeros."""
        packed, lstm = isinstance(input, PackedSequence), self.mode == "LSTM"
        hidden, cell = self.hiddenInput, self.cellInput
        if self.rememberStates and self.hiddenOutput is not None:
            data = input.data if packed else input
            many = (int(input.batch_sizes[0]),) if packed else () if data.dim() == 2 else (data.shape[0 if self.batch_first else 1],)
            fits = self.hiddenOutput.shape[1:-1] == many
            hidden, cell = (None if t is None or not fits else t.to(data) for t in (self.hiddenOutput, self.cellOutput))
        if not lstm or (hidden is None and cell is None):
            return hidden
        return tuple(other.new_zeros(other.shape) if t is None else t for t, other in ((hidden, cell), (cell, hidden)))

    def forward(self: Any, input: Union[Tensor, PackedSequence]) -> Union[Tensor, PackedSequence]:
        if isinstance(input, Proxy):
            return kept_whole(self, input)
        if not isinstance(input, (Tensor, PackedSequence)):
            raise TypeError(f"{type(self).__name__}: input is {type(input).__name__}, allowed: Tensor or PackedSequence")
        y, last = super().forward(input, self._start(input))
        hidden, cell = last if self.mode == "LSTM" else (last, None)
        self.hiddenOutput, self.cellOutput = hidden.detach(), None if cell is None else cell.detach()
        return y

    def extra_repr(self: Any) -> str:
        text = f"{self.input_size} -> {self.hidden_size}, {self.num_layers} layer{'s' if self.num_layers > 1 else ''}"
        text += ", batchFirst" if self.batch_first else ""
        text += f", dropout={self.dropout}" if self.dropout else ""
        return text + (", rememberStates" if self.rememberStates else "")


class _OneWay(_Recurrent):
    """Constructor of the layers that run forward."""

    _settings: dict[str, Any] = {}

    def __init__(self, inputDim: int, outputDim: int, numberOfLayers: int, batchFirst: bool = False, dropout: float = 0,
                 rememberStates: bool = False, *, device: Any = None, dtype: Any = None) -> None:
        check_flags(rememberStates=rememberStates)
        self._build(inputDim, outputDim, numberOfLayers, batchFirst, dropout, device, dtype, **self._settings)
        self.rememberStates = rememberStates


class _BothWays(_Recurrent):
    """Constructor of the layers that run forward and backward."""

    def __init__(self, inputDim: int, outputDim: int, numberOfLayers: int, batchFirst: bool = False, dropout: float = 0, *,
                 device: Any = None, dtype: Any = None) -> None:
        self._build(inputDim, outputDim, numberOfLayers, batchFirst, dropout, device, dtype, bidirectional=True)


RNNReLU = made("RNNReLU", (_OneWay, nn.RNN), "h = max(W x + b + U h' + c, 0), over (T, B, inputDim), or (B, T, inputDim) with batchFirst.",
               "weft.torch7.RNNReLU(4, 6, 2)(torch.randn(5, 3, 4)).shape", (5, 3, 6), _settings={"nonlinearity": "relu"})
RNNTanh = made("RNNTanh", (_OneWay, nn.RNN), "h = tanh(W x + b + U h' + c), over (T, B, inputDim), or (B, T, inputDim) with batchFirst.",
               "weft.torch7.RNNTanh(4, 6, 2, True)(torch.randn(3, 5, 4)).shape", (3, 5, 6), _settings={"nonlinearity": "tanh"})


class LSTM(_OneWay, nn.LSTM):
    """Long short-term memory.

        >>> net = weft.torch7.LSTM(4, 6, 2, rememberStates=True)
        >>> net(torch.randn(5, 3, 4)).shape, net.cellOutput.shape
        (torch.Size([5, 3, 6]), torch.Size([2, 3, 6]))
    """


GRU = made("GRU", (_OneWay, nn.GRU), "Gated recurrent units.",
           "weft.torch7.GRU(4, 6, 1, dropout=0)", "weft.GRU(4 -> 6, 1 layer)")
BLSTM = made("BLSTM", (_BothWays, nn.LSTM), "LSTM in both directions: twice outputDim features.",
             "weft.torch7.BLSTM(4, 6, 1)(torch.randn(5, 3, 4)).shape", (5, 3, 12))
BGRU = made("BGRU", (_BothWays, nn.GRU), "GRU in both directions: twice outputDim features.",
            "weft.torch7.BGRU(4, 6, 1)(torch.randn(5, 3, 4)).shape", (5, 3, 12))
