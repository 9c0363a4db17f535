"""weft.causal_conv1d: the next tokens, states of sequences side by side, the package's names, the module; what a wrong call says."""
from __future__ import annotations

import copy
import sys

import pytest
import torch
import torch.nn.functional as F

import weft
from cases import DTYPES, close
from causal import data, exact, parameters
from weft._core import entry as _entry
from weft.causal_conv1d import (causal_conv1d_fn, causal_conv1d_ref, causal_conv1d_update, causal_conv1d_update_ref,
                                causal_conv1d_varlen_states, causal_conv1d_varlen_states_ref)

LOW = [torch.float16, torch.bfloat16]
ops = torch.ops.weft


# ---------------------------------------------------------------------------------------------- the next tokens

@pytest.mark.parametrize("ring", [False, True], ids=["shift", "ring"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda t: str(t)[6:])
def test_update(dtype, ring, device):
    for width, extra in ((1, 1), (2, 0), (3, 2), (4, 0), (4, 9), (6, 1), (31, 0)):
        for length in (None, 1, 4, 5):
            for last in (False, True):
                for gathers in (False, True):
                    weight, bias = parameters(7, width, device, torch.float64 if dtype == torch.float64 else torch.float32)
                    x = data(3, 7, length or 1, device, dtype, last)
                    state = data(9 if gathers else 3, 7, width - 1 + extra, device, dtype, last)
                    index = torch.tensor([8, 0, 4], dtype=torch.int32, device=device) if gathers else None
                    lengths = torch.tensor([0, 3, 1022], dtype=torch.int32, device=device) if ring else None
                    theirs, untouched = (state[index.long()] if gathers else state).clone().double().cpu(), state.clone()
                    args = (x if length else x[..., 0], state, weight, bias if extra else None, "silu" if last else None, lengths, index)
                    y = causal_conv1d_update(*args)
                    truth = causal_conv1d_update_ref(args[0].double().cpu(), theirs, weight.double().cpu(), bias.double().cpu() if extra else None, args[4],
                                                     None if lengths is None else lengths.cpu())
                    assert y.dtype == dtype and not y.requires_grad
                    close(y.cpu(), truth, width * 4)
                    moved = state[index.long()] if gathers else state
                    assert torch.equal(moved.double().cpu(), theirs)
                    if gathers:
                        rest = [i for i in range(9) if i not in (8, 0, 4)]
                        assert torch.equal(state[rest], untouched[rest])


def test_update_of_padding(device):
    weight, bias = parameters(7, 4, device)
    for length in (1, 4):
        x, state = data(4, 7, length, device), data(6, 7, 5, device)
        before, index = state.clone(), torch.tensor([-1, 2, -1, 5], dtype=torch.int32, device=device)
        y = causal_conv1d_update(x, state, weight, bias, "silu", conv_state_indices=index)
        assert (y[[0, 2]] == 0).all()
        alone = before[[2, 5]]
        torch.testing.assert_close(y[[1, 3]], causal_conv1d_update(x[[1, 3]], alone, weight, bias, "silu"))
        before[[2, 5]] = alone
        assert torch.equal(state, before)


def test_numbers_of_rows_and_places_with_gaps(device):
    """They are read, and looked at, where they are: what lies between is of somebody else."""
    weight, bias = parameters(4, 3, device)
    x, ring, before = data(2, 4, 1, device), data(3, 4, 6, device), data(3, 4, 6, device)
    for good, bad in (([2, 99, 0, -7], [2, 0, 3, 0]), ([1, -5, -1, 99], [0, 1, -2, 1])):
        gaps = torch.tensor(good, dtype=torch.int32, device=device)[::2]
        results = []
        for index in (gaps, gaps.contiguous()):
            state = before.clone()
            results += [causal_conv1d_update(x, state, weight, bias, conv_state_indices=index), state]
        assert torch.equal(results[0], results[2]) and torch.equal(results[1], results[3])
        if device.type == "cpu":
            state = before.clone()
            with pytest.raises(RuntimeError, match=f"conv_state_indices: has {bad[2]} at 1"):
                causal_conv1d_update(x, state, weight, bias, conv_state_indices=torch.tensor(bad, dtype=torch.int32)[::2])
            assert torch.equal(state, before)
    lengths = torch.tensor([1, -3, 4, -3], dtype=torch.int32, device=device)[::2]
    states = [ring[:2].clone(), ring[:2].clone()]
    ours = [causal_conv1d_update(x, state, weight, bias, cache_seqlens=t) for state, t in zip(states, (lengths, lengths.contiguous()))]
    assert torch.equal(*ours) and torch.equal(*states)
    if device.type == "cpu":
        with pytest.raises(RuntimeError, match="cache_seqlens: has -1 at 1"):
            causal_conv1d_update(x, states[0], weight, bias, cache_seqlens=torch.tensor([1, 2, -1, 2], dtype=torch.int32)[::2])
        assert torch.equal(*states)


def test_token_by_token_is_the_whole(device):
    for dtype in (torch.float32, torch.bfloat16):
        conv = weft.nn.CausalConv1d(12, 4, activation="silu").to(device)
        x, state = data(3, 12, 25, device, dtype), conv.state(3, dtype)
        steps = [conv.step(x[:, :, t], state) for t in range(20)] + [conv.step(x[:, :, 20:], state)]
        torch.testing.assert_close(torch.cat([s[..., None] for s in steps[:20]] + steps[20:], 2), conv(x), rtol=1e-2 if dtype in LOW else 1e-5, atol=1e-2 if dtype in LOW else 1e-6)
        assert torch.equal(state, x[:, :, 22:])


def test_a_state_of_inference_mode_stays_there(device):
    """PyTorch writes to such a tensor in inference mode alone."""
    with torch.inference_mode():
        state = torch.zeros(1, 4, 3, device=device)
        causal_conv1d_update(torch.ones(1, 4, device=device), state, torch.ones(4, 4, device=device))
        if _entry.available:   # without the dispatcher, as elsewhere
            arguments = torch.ones(1, 4, device=device), state.clone(), torch.ones(4, 4, device=device), None, None, None, False
            assert _entry.update(*arguments) is not NotImplemented
    with pytest.raises(RuntimeError, match="nference"):
        causal_conv1d_update(torch.ones(1, 4, device=device), state, torch.ones(4, 4, device=device))
    assert state[0, :, -1].tolist() == [1.0] * 4 and state[0, :, 0].tolist() == [0.0] * 4


def test_update_records_nothing(device):
    weight, bias = (t.requires_grad_() for t in parameters(4, 4, device))
    state = torch.randn(2, 4, 3, device=device)
    x = torch.randn(2, 4, device=device, requires_grad=True)
    for y in (causal_conv1d_update(x, state, weight, bias, "silu"), ops.causal_conv1d_update(x, state, weight, bias, None, None, True)):
        assert not y.requires_grad and y.grad_fn is None and not state.requires_grad
        y += 1


def test_every_update_is_counted(device):
    """The operator's first call of a kind, the quick way to its plan, and those with numbers: what autograd has saved of the state is no longer that."""
    x, weight, state = torch.randn(2, 4, device=device), torch.randn(4, 4, device=device), torch.randn(2, 4, 3, device=device)
    numbers = torch.tensor([1, 0], dtype=I32, device=device)
    for more in ({}, {"cache_seqlens": numbers}, {"conv_state_indices": numbers}):
        for _ in range(3):
            version = state._version
            causal_conv1d_update(x, state, weight, **more)
            assert state._version > version
    factor = torch.ones((), device=device, requires_grad=True)
    y = (factor * state).sum()
    causal_conv1d_update(x, state, weight)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


# ---------------------------------------------------------------------------------------------- states of sequences side by side

def test_varlen_states(device):
    for dtype in DTYPES:
        for lengths in ([5], [1, 1, 7, 40, 3], [0, 4, 0], [0, 0], list(range(1, 33))):
            cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], device=device)
            x = torch.randn(sum(lengths), 6, device=device).to(dtype)
            for length in (0, 1, 3, 20):
                for kind in (torch.int32, torch.int64):
                    mine = causal_conv1d_varlen_states(x, cu.to(kind), length)
                    reference = causal_conv1d_varlen_states_ref(x, cu, length)
                    assert torch.equal(mine, reference) and mine.dtype == dtype and mine.stride() == reference.stride()
                    for i, (a, b) in enumerate(zip(cu.tolist(), cu.tolist()[1:])):
                        alone = F.pad(x[a:b].T, (max(0, length - (b - a)), 0))
                        assert torch.equal(mine[i], alone[:, alone.shape[1] - length:])


# ---------------------------------------------------------------------------------------------- names and errors

def test_names_of_the_package():
    """A program that imports the package and its modules by their own names."""
    import importlib
    kept = {name: sys.modules.get(name) for name in ("causal_conv1d", "causal_conv1d.causal_conv1d_interface", "causal_conv1d.causal_conv1d_varlen")}
    try:
        sys.modules["causal_conv1d"] = weft.causal_conv1d
        for name, functions in (("", ("causal_conv1d_fn", "causal_conv1d_update")), (".causal_conv1d_interface", ("causal_conv1d_ref", "causal_conv1d_update_ref")),
                                (".causal_conv1d_varlen", ("causal_conv1d_varlen_states", "causal_conv1d_varlen_states_ref"))):
            module = importlib.import_module("causal_conv1d" + name)
            assert all(callable(getattr(module, f)) for f in functions)
    finally:
        for name, module in kept.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


def test_reference_functions(device):
    weight, bias = parameters(5, 4, device)
    x, initial, out = data(2, 5, 2, device), data(2, 5, 3, device), torch.empty(2, 5, 3, device=device)
    y, state = causal_conv1d_ref(x, weight, bias, initial, True, out, "swish")
    close(y.cpu(), exact(x, weight, bias, initial=initial, silu=True))
    assert state is out and torch.equal(state, torch.cat([initial, x], 2)[:, :, -3:])


def test_parameters_are_drawn_as_of_conv1d():
    """Of as many groups as channels: by the width alone."""
    for width in (1, 4, 9):
        for p in weft.nn.CausalConv1d(4000, width).parameters():
            assert 0.99 * width ** -0.5 < p.abs().max().item() <= width ** -0.5 and abs(p.mean().item()) < 0.05 * width ** -0.5


def test_module(device):
    module = weft.nn.CausalConv1d(6, 4, activation="silu").to(device)
    assert str(module) == "weft.CausalConv1d(6, width=4, bias=True, activation='silu')"
    assert {k: v.shape for k, v in module.state_dict().items()} == {"weight": (6, 4), "bias": (6,)}
    assert list(weft.nn.CausalConv1d(6, 2, bias=False).state_dict()) == ["weight"]
    again = weft.nn.CausalConv1d(6, 4, activation="silu").to(device)
    again.load_state_dict(copy.deepcopy(module).state_dict())
    x = data(2, 6, 9, device)
    assert torch.equal(again(x), module(x))
    y, state = module(x, initial_states=module.state(2), return_final_states=True)
    assert torch.equal(y, module(x)) and torch.equal(state, x[:, :, 6:])
    for wrong in ((0, 4), (4, 0), (4.0, 4), (4, True)):
        with pytest.raises(ValueError, match="allowed: an int of 1 or more"):
            weft.nn.CausalConv1d(*wrong)
    with pytest.raises(NotImplementedError):
        weft.nn.CausalConv1d(4, 4, activation="relu")


X, W, B, S = torch.zeros(2, 4, 9), torch.zeros(4, 3), torch.zeros(4), torch.zeros(2, 4, 2)
I32 = torch.int32
WRONG = {
    "activation": (lambda: causal_conv1d_fn(X, W, activation="relu"), NotImplementedError, "activation: is 'relu', allowed: None, 'silu' or 'swish'"),
    "activation-kind": (lambda: causal_conv1d_fn(X, W, activation=[1]), NotImplementedError, "activation"),
    "x-kind": (lambda: causal_conv1d_fn(None, W), TypeError, "x is NoneType, allowed: Tensor"),
    "x-rank": (lambda: causal_conv1d_fn(X[0], W), RuntimeError, "x: has"),
    "x-type": (lambda: causal_conv1d_fn(X.long(), W), RuntimeError, "x: is int64"),
    "no-channels": (lambda: causal_conv1d_fn(X[:, :0], W[:0]), RuntimeError, "x: has 0 channels"),
    "weight-rank": (lambda: causal_conv1d_fn(X, W[:, None]), RuntimeError, r"weight: has the shape \[4, 1, 3\]"),
    "weight-dim": (lambda: causal_conv1d_fn(X, W[:3]), RuntimeError, r"weight: has the shape \[3, 3\]"),
    "weight-width": (lambda: causal_conv1d_fn(X, W[:, :0]), RuntimeError, "weight: has the width 0"),
    "weight-type": (lambda: causal_conv1d_fn(X, W.double()), RuntimeError, "weight: is float64, allowed: float32"),
    "bias-shape": (lambda: causal_conv1d_fn(X, W, B[:3]), RuntimeError, "bias: has the shape"),
    "bias-type": (lambda: causal_conv1d_fn(X.half(), W, B.bfloat16()), RuntimeError, "bias: is bfloat16, allowed: float32 or the type of x, float16"),
    "bias-kind": (lambda: causal_conv1d_fn(X, W, 3), TypeError, "bias is int, allowed: Tensor or None"),
    "seq-shape": (lambda: causal_conv1d_fn(X, W, B, torch.zeros(2, 8, dtype=I32)), RuntimeError, "seq_idx: has the shape"),
    "seq-type": (lambda: causal_conv1d_fn(X, W, B, torch.zeros(2, 9)), RuntimeError, "seq_idx: is float32, allowed: int32"),
    "seq-and-states": (lambda: causal_conv1d_fn(X, W, B, torch.zeros(2, 9, dtype=I32), S), AssertionError, "seq_idx: is given with initial_states"),
    "seq-and-final": (lambda: causal_conv1d_fn(X, W, B, torch.zeros(2, 9, dtype=I32), return_final_states=True), AssertionError, "seq_idx: is given with return_final_states"),
    "states-shape": (lambda: causal_conv1d_fn(X, W, B, initial_states=X), RuntimeError, r"initial_states: has the shape \[2, 4, 9\], allowed: \[2, 4, 2\]"),
    "states-type": (lambda: causal_conv1d_fn(X, W, B, initial_states=S.half()), RuntimeError, "initial_states: is float16"),
    "device": (lambda: causal_conv1d_fn(X, W.to("meta")), RuntimeError, "weight: is on meta, allowed: the device of x, cpu"),
    "update-x-rank": (lambda: causal_conv1d_update(X[0, 0], S, W), RuntimeError, "x: has the shape"),
    "update-x-kind": (lambda: causal_conv1d_update(None, S, W), TypeError, "x is NoneType"),
    "update-state-kind": (lambda: causal_conv1d_update(X, None, W), TypeError, "conv_state is NoneType"),
    "update-activation": (lambda: causal_conv1d_update(X, S, W, activation="gelu"), NotImplementedError, "activation"),
    "update-state-grad": (lambda: causal_conv1d_update(X, S.clone().requires_grad_(), W), RuntimeError, "conv_state: requires a gradient"),
    "update-device": (lambda: causal_conv1d_update(X, S.to("meta"), W), RuntimeError, "conv_state: is on meta, allowed: the device of x, cpu"),
    "varlen-kind": (lambda: causal_conv1d_varlen_states(W, [0, 1], 2), TypeError, "causal_conv1d_varlen_states: cu_seqlens is list, allowed: Tensor"),
    "varlen-rank": (lambda: causal_conv1d_varlen_states(X, torch.tensor([0, 1]), 2), RuntimeError, "x: has the shape"),
    "varlen-negative": (lambda: causal_conv1d_varlen_states(W, torch.tensor([0, 1]), -2), RuntimeError, "state_len: is -2, allowed: 0 or more"),
    "varlen-falls": (lambda: causal_conv1d_varlen_states(W, torch.tensor([0, 3, 2]), 2), RuntimeError, "cu_seqlens: is"),
    "varlen-beyond": (lambda: causal_conv1d_varlen_states(W, torch.tensor([0, 5]), 2), RuntimeError, "cu_seqlens: is"),
    "varlen-none": (lambda: causal_conv1d_varlen_states(W, torch.tensor([], dtype=I32), 2), RuntimeError, "cu_seqlens: has 0 elements"),
    "varlen-type": (lambda: causal_conv1d_varlen_states(W, torch.tensor([0.0, 1.0]), 2), RuntimeError, "cu_seqlens: is float32"),
    "varlen-length-kind": (lambda: causal_conv1d_varlen_states(W, torch.tensor([0, 1]), 2.5), TypeError, "state_len: is 2.5"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name):
    call, kind, text = WRONG[name]
    with pytest.raises(kind, match=text):
        call()


STATES = {   # what is wrong beside a good state, which must stay as it is
    "state-len": (dict(conv_state=torch.zeros(2, 4, 1)), "conv_state: holds 1 tokens, allowed with a width of 3: 2 or more"),
    "state-dim": (dict(conv_state=torch.zeros(2, 3, 2)), "conv_state: has the shape"),
    "state-batch": (dict(conv_state=torch.zeros(3, 4, 2)), "conv_state: has the shape"),
    "state-rank": (dict(conv_state=torch.zeros(2, 4)), "conv_state: has the shape"),
    "state-type": (dict(conv_state=torch.zeros(2, 4, 2).half()), "conv_state: is float16"),
    "state-expanded": (dict(conv_state=torch.zeros(2, 4, 1).expand(2, 4, 2)), "overlap"),
    "x-is-state": (dict(x=None), "overlap"),
    "weight": (dict(weight=torch.zeros(5, 3)), "weight: has the shape"),
    "bias": (dict(bias=torch.zeros(5)), "bias: has the shape"),
    "lengths-shape": (dict(cache_seqlens=torch.zeros(3, dtype=I32)), "cache_seqlens: has the shape"),
    "lengths-type": (dict(cache_seqlens=torch.zeros(2, dtype=torch.int64)), "cache_seqlens: is int64, allowed: int32"),
    "lengths-negative": (dict(cache_seqlens=torch.tensor([0, -1], dtype=I32)), "cache_seqlens: has -1 at 1"),
    "index-shape": (dict(conv_state_indices=torch.zeros(2, 1, dtype=I32)), "conv_state_indices: has the shape"),
    "index-type": (dict(conv_state_indices=torch.zeros(2)), "conv_state_indices: is float32, allowed: int32"),
    "index-beyond": (dict(conv_state_indices=torch.tensor([0, 2], dtype=I32)), "conv_state_indices: has 2 at 1, allowed: -1 to 1"),
    "index-below": (dict(conv_state_indices=torch.tensor([-2, 0], dtype=I32)), "conv_state_indices: has -2 at 0, allowed: -1 to 1"),
}


@pytest.mark.parametrize("name", STATES)
def test_wrong_update_changes_nothing(name):
    wrong, text = STATES[name]
    state = torch.full((2, 4, 2), 7.0)
    args = {"x": torch.ones(2, 4), "conv_state": state, "weight": torch.ones(4, 3), "bias": torch.ones(4), **wrong}
    if args["x"] is None:
        args["x"] = args["conv_state"][:, :, 0]
    before = args["conv_state"].clone()
    if name in ("lengths-negative", "index-beyond", "index-below"):   # numbers are looked at in each call
        for _ in range(2):
            causal_conv1d_update(**{**args, "conv_state": before.clone(), **{k: torch.arange(2, dtype=I32) for k in wrong}})
    with pytest.raises(RuntimeError, match=text):
        causal_conv1d_update(**args)
    assert torch.equal(args["conv_state"], before)
