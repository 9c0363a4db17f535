"""weft.report(): every layer that weft knows, the ways of running the net, as text and as a page; the net stays as it is."""
from __future__ import annotations

import copy
import re
import sys

import pytest
import torch
from torch import nn

import weft
from weft._bench import clock as _clock
from weft._convert import conversion as _conversion

_report = sys.modules["weft.report"]   # the name is the function


def net(device):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(8, 8, 3, groups=8), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 4)).to(device)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_rows_ways_and_page(device, training, tmp_path):
    module = net(device).train(training)
    before = copy.deepcopy(module.state_dict())
    made = weft.report(module, torch.randn(2, 8, 8, 8, device=device), html=tmp_path / "page.html")
    assert [(r.module, r.kind) for r in made.layers] == [("0", "Conv2d"), ("1", "BatchNorm2d"), ("2", "ReLU"), ("3", "MaxPool2d")]
    assert made.layers[0].shape == (2, 8, 8, 8) and all(r.torch_ms > 0 and r.weft_ms > 0 and r.kernel and r.floor_ms > 0 for r in made.layers)
    assert [w.name for w in made.ways] == ["plain", "enable()", "convert(example=x)", "convert(example=x, fuse=True)"][:3 if training else 4]
    assert all(w.ms > 0 and w.bytes > 0 for w in made.ways)
    text, page = str(made), (tmp_path / "page.html").read_text()
    assert "the whole net" in text and ("forward and backward" in text) == training and made.layers[0].kernel in text
    assert page.startswith("<!doctype html>") and all(f"<td>{w.name}</td>" in page for w in made.ways) and "MaxPool2d" in page
    assert all(type(m).__module__.startswith("torch.") for m in module.modules()) and module.training == training
    assert all(torch.equal(a, b) for a, b in zip(before.values(), module.state_dict().values())) and not weft._enable.is_enabled()


def test_a_layer_that_is_not_called_and_one_called_twice():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.pool, self.unused = nn.MaxPool2d(2), nn.Softmax(1)

        def forward(self, x):
            return self.pool(self.pool(x))
    made = weft.report(Odd().eval(), {"x": torch.randn(1, 2, 8, 8)})
    assert [r.torch_ms is None for r in made.layers] == [False, True] and "not called" in str(made)


def test_the_floor_of_a_layer(monkeypatch):
    """Its tensors moved once or its products, whichever takes longer on the machine; an input without a batch is one image."""
    monkeypatch.setattr(_report, "SECONDS", 0.0)
    conv = nn.Sequential(nn.Conv2d(8, 8, 3, groups=8)).eval()
    for images, shape in ((1, (8, 8, 8)), (2, (2, 8, 8, 8))):
        moved, flops = 4 * (images * 8 * (64 + 36) + 72 + 8), 2 * images * 72 * 36
        for roof, floor in (((1.0, 1e30), moved), ((1e30, 1.0), flops)):
            monkeypatch.setattr(_clock, "roof", lambda device, roof=roof: roof)
            assert weft.report(conv, torch.randn(shape)).layers[0].floor_ms == floor


class Watched(nn.Module):
    """Notes whether weft is enabled while it runs."""

    seen: list[bool] = []

    def forward(self, x):
        self.seen.append(weft._enable.is_enabled())
        return x


def test_each_way_is_run_as_its_name_says(monkeypatch):
    """enable() alone is with weft under PyTorch's operators; figures by name, the ratio to the plain net."""
    net, x, sides_seen = nn.Sequential(nn.Conv2d(8, 8, 3, groups=8), Watched()).eval(), torch.randn(1, 8, 8, 8), {}

    def medians(sides, *_):
        for name, run in sides.items():
            Watched.seen.clear()
            run(2)
            sides_seen[name] = list(Watched.seen)
        return {"plain": 6.0, "enable()": 3.0, "convert(example=x)": 2.0, "convert(example=x, fuse=True)": 12.0}
    monkeypatch.setattr(_conversion, "_measure", lambda *_: {"torch": 1.0, "weft": 1.0})
    monkeypatch.setattr(_clock, "medians", medians)
    monkeypatch.setattr(_clock, "peak", lambda run, device: run() is not None and 5_000_000)
    monkeypatch.setattr(_clock, "roof", lambda device: (1e9, 1e9))
    made = weft.report(net, x)
    assert sides_seen == {way.name: [way.name == "enable()"] * 2 for way in made.ways}
    totals = [re.split("  +", line.strip()) for line in str(made).splitlines() if line.startswith(("the whole", "plain", "enable()", "convert("))]
    assert totals == [["the whole net", "ms", "ratio", "peak MB"], ["plain", "6.000", "1.00", "5.0"], ["enable()", "3.000", "2.00", "5.0"],
                      ["convert(example=x)", "2.000", "3.00", "5.0"], ["convert(example=x, fuse=True)", "12.000", "0.50", "5.0"]]
    assert "convert(example=x) runs this network in 2.000 ms instead of 6.000, 3.00 times as fast." in made.html()


def test_rows_of_layers():
    """PyTorch's time before weft's, the ratio of the two, and the share of the floor by whichever is faster."""
    layers = [_report.Layer("a", "Conv2d", (1, 2), "k", 4.0, 2.0, 1.0), _report.Layer("b", "Conv2d", (1, 2), "k", 2.0, 5.0, 1.0)]
    assert [layer.share for layer in layers] == [0.5, 0.5]
    made = _report.NetReport(layers, [_report.Way("plain", 1.0, 1)], False, "cpu")
    head, a, b, both = (re.split("  +", line.strip()) for line in str(made).splitlines()[:4])
    assert head[:7] == ["module", "kind", "shape", "torch ms", "weft ms", "ratio", "of floor"]
    assert a[3:] == ["4.000", "2.000", "2.00", "0.50", "k"] and b[3:] == ["2.000", "5.000", "0.40", "0.50", "k; PyTorch is as fast"]
    assert both == ["these layers", "6.000", "7.000"]


def test_wrong():
    with pytest.raises(TypeError, match="net: is list, allowed: a torch.nn.Module"):
        weft.report([], torch.zeros(1))
    with pytest.raises(TypeError, match="example: is int, allowed: a tensor"):
        weft.report(nn.ReLU(), 3)
    with pytest.raises(RuntimeError, match="example: the net does not run with it"):
        weft.report(nn.Conv2d(3, 3, 3), torch.zeros(1, 2, 8, 8))
