"""Wrong calls of every name in weft.torch7, with the class of the error and its text."""
from __future__ import annotations

import copy

import pytest
import torch

from weft import torch7 as t7
from weft.torch7 import conv as _conv7

X = torch.zeros(2, 4, 6, 6)
CONV = t7.SpatialConvolution(4, 4, 3, 3)
WRONG = {
    "conv-planes": (lambda: t7.SpatialConvolution("3", 4, 3, 3), TypeError, "nInputPlane: is '3', allowed: an int"),
    "conv-kernel": (lambda: t7.SpatialConvolution(3, 4, 0, 3), ValueError, "kW: is 0, allowed: 1 or more"),
    "conv-stride": (lambda: t7.SpatialConvolution(3, 4, 3, 3, 1, -1), ValueError, "dH: is -1, allowed: 1 or more"),
    "conv-padding": (lambda: t7.SpatialConvolution(3, 4, 3, 3, 1, 1, 1, 1.5), TypeError, "padH: is 1.5, allowed: an int"),
    "conv-groups": (lambda: t7.SpatialConvolution(3, 4, 3, 3, groups=2), ValueError, "groups: is 2, allowed: a divisor of nInputPlane, 3, and of nOutputPlane, 4"),
    "conv-missing": (lambda: t7.SpatialConvolution(3, 4, 3), TypeError, "missing 1 required positional argument: 'kH'"),
    "conv-rank": (lambda: CONV(X[0, 0]), RuntimeError, "conv2d: input has 2 dimensions [6, 6], allowed: 3 (unbatched) or 4 (batched)"),
    "conv-channels": (lambda: CONV(X[:, :3]), RuntimeError, "input: has 3 channels, allowed with groups=1"),
    "conv-mode-rank": (lambda: copy.deepcopy(CONV).fastest()(X[0, 0]), RuntimeError, "conv2d: input has 2 dimensions [6, 6], allowed: 3 (unbatched) or 4"),
    "dilated": (lambda: t7.SpatialDilatedConvolution(3, 4, 3, 3, dilationH=0), ValueError, "dilationH: is 0, allowed: 1 or more"),
    "full": (lambda: t7.SpatialFullConvolution(3, 4, 3, 3, adjW=-1), ValueError, "adjW: is -1, allowed: 0 or more"),
    "full-adj": (lambda: t7.SpatialFullConvolution(4, 4, 3, 3, 1, 1, 0, 0, 1, 1)(X), RuntimeError, "output_padding: is 1 along spatial axis 0, allowed: 0 or more"),
    "volume": (lambda: t7.VolumetricConvolution(3, 4, 3, 3, True), TypeError, "kH: is True, allowed: an int"),
    "volume-dilated": (lambda: t7.VolumetricDilatedConvolution(3, 4, 3, 3, 3, dilationT=None), TypeError, "dilationT: is None, allowed: an int"),
    "volume-full": (lambda: t7.VolumetricFullConvolution(3, 4, 3, 3, 3, padT=-2), ValueError, "padT: is -2, allowed: 0 or more"),
    "temporal": (lambda: t7.TemporalConvolution(3, 0, 3), ValueError, "outputFrameSize: is 0, allowed: 1 or more"),
    "temporal-shape": (lambda: t7.TemporalConvolution(3, 4, 3)(torch.zeros(2, 3, 9)), RuntimeError,
                       "TemporalConvolution: input is [2, 3, 9], allowed: (T, 3) or (B, T, 3)"),
    "temporal-kind": (lambda: t7.TemporalConvolution(3, 4, 3)([1]), TypeError, "TemporalConvolution: input is list, allowed: Tensor"),
    "mode-name": (lambda: CONV.setMode("conv_magic"), ValueError, "fmode: is 'conv_magic', allowed: 'torch', or a kernel of weft"),
    "mode-second": (lambda: CONV.setMode("torch", "x"), ValueError, "bdmode: is 'x', allowed: 'torch'"),
    "mode-third": (lambda: CONV.setMode("torch", "torch", 3), TypeError, "bwmode: is 3, allowed: the name of a kernel, or None"),
    "fastest": (lambda: CONV.fastest(1), TypeError, "mode: is 1, allowed: True or False"),
    "pool": (lambda: t7.SpatialMaxPooling(2, 0), ValueError, "kH: is 0, allowed: 1 or more"),
    "pool-stride": (lambda: t7.SpatialAveragePooling(2, 2, 0, 1), ValueError, "dW: is 0, allowed: 1 or more"),
    "pool-padding": (lambda: t7.VolumetricMaxPooling(2, 2, 2, padT="1"), TypeError, "padT: is '1', allowed: an int"),
    "pool-volume": (lambda: t7.VolumetricAveragePooling(2, 2, None), TypeError, "kH: is None, allowed: an int"),
    "relu": (lambda: t7.ReLU(1), TypeError, "inplace: is 1, allowed: True or False"),
    "clipped": (lambda: t7.ClippedReLU(-1), ValueError, "ceiling: is -1, allowed: a number above 0"),
    "clipped-kind": (lambda: t7.ClippedReLU("6"), TypeError, "ceiling: is '6', allowed: a number"),
    "tanh": (lambda: t7.Tanh(None), TypeError, "inplace: is None, allowed: True or False"),
    "sigmoid": (lambda: t7.Sigmoid("x"), TypeError, "inplace: is 'x', allowed: True or False"),
    "softmax": (lambda: t7.SoftMax("fast"), TypeError, "fastMode: is 'fast', allowed: True or False"),
    "softmax-rank": (lambda: t7.SoftMax()(torch.zeros(1, 1, 1, 1, 1, 1)), RuntimeError, "SoftMax: input has 6 dimensions [1, 1, 1, 1, 1, 1], allowed: one of 1, 2"),
    "softmax-kind": (lambda: t7.LogSoftMax()(3), TypeError, "LogSoftMax: input is int, allowed: Tensor"),
    "softmax-volume": (lambda: t7.VolumetricSoftMax()(X[0]), RuntimeError, "VolumetricSoftMax: input has 3 dimensions [4, 6, 6], allowed: one of 1, 2, 4, 5"),
    "weights": (lambda: t7.SpatialCrossEntropyCriterion([1, 2]), TypeError, "weights: is list, allowed: Tensor or None"),
    "weights-shape": (lambda: t7.VolumetricCrossEntropyCriterion(X), ValueError, "weights: has the shape [2, 4, 6, 6], allowed: one dimension"),
    "label-low": (lambda: t7.SpatialCrossEntropyCriterion()(X, torch.zeros(2, 6, 6)), IndexError,
                  "SpatialCrossEntropyCriterion: target has a label that is no class, allowed: 1 to 4"),
    "label-high": (lambda: t7.SpatialCrossEntropyCriterion()(X[0], torch.full((6, 6), 5)), IndexError, "allowed: 1 to 4"),
    "target-shape": (lambda: t7.SpatialCrossEntropyCriterion()(X, torch.ones(2, 4, 6, 6)), RuntimeError,
                     "target has the shape [2, 4, 6, 6], allowed with an input of [2, 4, 6, 6]: [2, 6, 6]"),
    "target-type": (lambda: t7.SpatialCrossEntropyCriterion()(X, torch.ones(2, 6, 6, dtype=torch.bool)), RuntimeError, "target is bool, allowed: whole numbers from 1"),
    "target-kind": (lambda: t7.SpatialCrossEntropyCriterion()(X, 1), TypeError, "SpatialCrossEntropyCriterion: target is int, allowed: Tensor"),
    "criterion-rank": (lambda: t7.VolumetricCrossEntropyCriterion()(X[0], X), RuntimeError,
                       "VolumetricCrossEntropyCriterion: input has 3 dimensions [4, 6, 6], allowed: 4 (unbatched) or 5 (batched)"),
    "norm": (lambda: t7.BatchNormalization(0), ValueError, "nFeature: is 0, allowed: 1 or more"),
    "norm-affine": (lambda: t7.SpatialBatchNormalization(4, 1e-5, 0.1, 1), TypeError, "affine: is 1, allowed: True or False"),
    "norm-eps": (lambda: t7.VolumetricBatchNormalization(4, "x"), TypeError, "eps: is 'x', allowed: a number"),
    "norm-rank": (lambda: t7.SpatialBatchNormalization(4)(X[0]), ValueError, "expected 4D input (got 3D input)"),
    "lrn": (lambda: t7.SpatialCrossMapLRN(0), ValueError, "size: is 0, allowed: 1 or more"),
    "lrn-alpha": (lambda: t7.SpatialCrossMapLRN(5, float("nan")), ValueError, "alpha: is nan, allowed: a finite number"),
    "lrn-rank": (lambda: t7.SpatialCrossMapLRN()(X[0, 0]), RuntimeError, "SpatialCrossMapLRN: input has 2 dimensions [6, 6], allowed: 3 (unbatched) or 4 (batched)"),
    "lrn-kind": (lambda: t7.SpatialCrossMapLRN()(None), TypeError, "SpatialCrossMapLRN: input is NoneType, allowed: Tensor"),
    "rnn": (lambda: t7.RNNReLU(4, 5, 0), ValueError, "numberOfLayers: is 0, allowed: 1 or more"),
    "rnn-missing": (lambda: t7.RNNTanh(4, 5), TypeError, "missing 1 required positional argument: 'numberOfLayers'"),
    "rnn-first": (lambda: t7.LSTM(4, 5, 1, 1), TypeError, "batchFirst: is 1, allowed: True or False"),
    "rnn-dropout": (lambda: t7.GRU(4, 5, 1, False, 1.5), ValueError, "dropout: is 1.5, allowed: 0 to 1"),
    "rnn-remember": (lambda: t7.GRU(4, 5, 1, rememberStates="yes"), TypeError, "rememberStates: is 'yes', allowed: True or False"),
    "rnn-both": (lambda: t7.BLSTM(4, 5, 1, False, 0, True), TypeError, "positional arguments but 7 were given"),
    "rnn-input": (lambda: t7.BGRU(4, 5, 1)("x"), TypeError, "BGRU: input is str, allowed: Tensor or PackedSequence"),
    "rnn-rank": (lambda: t7.LSTM(4, 5, 1)(X), ValueError, "LSTM: input has 4 dimensions [2, 4, 6, 6], allowed: 2 (unbatched) or 3 (batched)"),
    "persist": (lambda: t7.LSTM(4, 5, 1).setPersist(1), TypeError, "mode: is 1, allowed: True or False"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name):
    call, error, text = WRONG[name]
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)
    assert CONV._mode == _conv7.Mode()      # nothing of a wrong call stays
