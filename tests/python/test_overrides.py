"""A call with another library's kind of tensor is handed to it whole: the function that was called, and every argument that was given."""
from __future__ import annotations

import inspect

import pytest
import torch

import weft.functional as W
from weft import causal_conv1d


def spy():
    """It has __torch_function__, as a subclass of Tensor has, and notes what comes by."""
    class Spy:
        seen = []

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            cls.seen.append((function, args, kwargs or {}))
            return "taken"
    return Spy()


FUNCTIONS = {name: getattr(W, name) for name in W.__all__ if inspect.isfunction(getattr(W, name))}
FUNCTIONS.update({name: getattr(causal_conv1d, name) for name in ("causal_conv1d_fn", "causal_conv1d_update")})
GIVEN = {"activation": "silu", "act": "relu", "return_indices": True, "inplace": True, "reduction": "sum", "return_final_states": True, "legacy": True}
RECURRENT = ("gru", "lstm", "rnn_relu", "rnn_tanh")   # their two forms are told apart by the kinds of their arguments


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - set(RECURRENT)))
def test_every_argument_arrives(name):
    function, tensor = FUNCTIONS[name], spy()
    given = {p: tensor if i == 0 else GIVEN.get(p, 100 + i) for i, p in enumerate(inspect.signature(function).parameters)}   # no two alike
    assert function(**given) == "taken"
    [(whom, args, kwargs)] = tensor.seen
    assert whom is function
    arrived = inspect.signature(whom).bind(*args, **kwargs).arguments
    assert arrived.keys() == given.keys() and all(arrived[p] is value or arrived[p] == value for p, value in given.items()), (arrived, given)


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("packed", [False, True])
def test_every_argument_of_a_recurrent_layer_arrives(name, packed):
    function, tensor, x = FUNCTIONS[name], spy(), torch.zeros(2, 3)
    given = {"data": tensor, "batch_sizes": torch.tensor([2])} if packed else {"input": tensor}
    given |= {"hx": (x, x) if name == "lstm" else x, "params": [x], "has_biases": True, "num_layers": 101, "dropout": 0.25, "train": False, "bidirectional": True}
    given |= {} if packed else {"batch_first": True}
    for by_place in range(len(given) + 1):
        tensor.seen.clear()
        assert function(*list(given.values())[:by_place], **dict(list(given.items())[by_place:])) == "taken"
        [(whom, args, kwargs)] = tensor.seen
        assert whom is function and len(args) + len(kwargs) == len(given)
        assert all(a is b for a, b in zip(args, given.values())) and all(kwargs[k] is given[k] for k in kwargs)
