"""PConv* and PartialConv*: the old systems' cases, their state_dicts, and every option against the plain formula in float64."""
from __future__ import annotations

import copy
import io
import math
import pickle
import re

import pytest
import torch
import torch.nn.functional as F

import weft
import weft.nn as M
from cases import close

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
ids = lambda v: str(v).replace("torch.", "")


def formula(x, w, b, m, transposed=False, **options):
    """(result, new mask) in float64 for a mask of every channel: convolutions of x * m and of m with ones, as both papers write them."""
    rank = w.dim() - 2
    conv = getattr(F, f"conv{'_transpose' if transposed else ''}{rank}d")
    x, w, m = x.double(), w.double(), m.double().expand(x.shape)
    s = conv(m, torch.ones_like(w), None, **options)
    window = x.shape[1] // options.get("groups", 1) * math.prod(w.shape[2:])
    u = s.clamp(0, 1)
    y = conv(torch.where(m != 0, x * m, 0.0), w, None, **options) * (window / (s + 1e-8) * u)
    return y if b is None else (y + b.double().view(1, -1, *[1] * rank)) * u, u


def holes(*shape, device="cpu"):
    """Mostly holes, so that some windows see none and most see few pixels."""
    return torch.rand(shape, device=device) < 0.3


def saved(state):
    """A state_dict that went through a file."""
    stream = io.BytesIO()
    torch.save(state, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=True)


# ---------------------------------------------------------------- torch_pconv: its own tests
REALISTIC = [(3, 8, 7, {"stride": 2, "padding": 3}), (8, 8, 7, {"padding": 3}), (8, 8, 7, {"padding": 3}), (8, 8, 7, {"padding": 3}), (8, 4, 3, {"padding": 1})]
SHAPES = [(3, 8, 5, {"padding": 2, "stride": 2}), (8, 8, 5, {"padding": 1}), (8, 8, 3, {"padding": 4}), (8, 8, 7, {"padding": 5}), (8, 4, 3, {"padding": 2})]


def rounding(*values):
    """1e-6 of the largest value, what the two ways to handle the bias may differ by, and as much for sums in another order."""
    return 2e-6 * max(v.abs().max().item() for v in values)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("bias, dilations", [(False, (1,) * 5), (True, (1,) * 5), (False, (1, 1, 2, 3, 1))], ids=["plain", "bias", "dilation"])
def test_iterated(bias, dilations, legacy, device):
    """The five layers of an inpainting net, each on what the one before gave: images and masks stay those of the formula, masks 0 or 1."""
    x, mask = torch.rand(2, 3, 64, 64, device=device), holes(2, 64, 64, device=device).float()
    for (i, o, k, geometry), dilation in zip(REALISTIC, dilations, strict=True):
        settings = geometry | {"dilation": dilation}
        module = M.PConv2d(i, o, k, **settings, bias=bias, legacy_behaviour=legacy).to(device)
        truth, new = formula(x, module.get_weight(), module.get_bias().flatten() if bias else None, mask[:, None], **settings)
        y, mask = module(x, mask)
        assert (y - truth).abs().max() <= rounding(truth) and torch.equal(mask.double(), new[:, 0]) and ((mask == 0) | (mask == 1)).all()
        x = y.detach()


def test_output_shapes_and_types(device):
    x, mask = torch.rand(2, 3, 64, 64, device=device), holes(2, 64, 64, device=device).float()
    for (i, o, k, geometry), size in zip(SHAPES, (32, 30, 36, 40, 42), strict=True):
        x, mask = M.PConv2d(i, o, k, **geometry, device=device)(x, mask)
        assert x.shape == (2, o, size, size) and mask.shape == (2, size, size) and x.dtype == mask.dtype == torch.float32


def test_backpropagation(device):
    """Through the layers to the first weight and to the image."""
    x, mask = torch.rand(2, 3, 16, 16, device=device, requires_grad=True), holes(2, 16, 16, device=device).float()
    y, first = x, None
    for i, o, k, geometry in REALISTIC:
        module = M.PConv2d(i, o, k, **geometry, device=device)
        first = first or module
        y, mask = module(y, mask)
    y.sum().backward()
    assert x.grad.isfinite().all() and first.get_weight().grad.abs().sum() > 0 and first.mask_conv.weight.grad is None


def test_legacy_rounds_as_nvidia_does(device):
    """A bias far above the sums: what is added ahead of the ratio and taken off again leaves its rounding behind; without it there is none."""
    x, mask = torch.rand(1, 2, 8, 8, device=device), holes(1, 8, 8, device=device).float()
    new, old = (M.PConv2d(2, 3, 3, padding=1, bias=True, legacy_behaviour=legacy, device=device) for legacy in (False, True))
    old.load_state_dict(new.set_bias(torch.full((3,), 1000.0)).state_dict())
    w, b = new.get_weight(), new.get_bias().flatten()
    raw = F.conv2d(x * mask[:, None], w, b, padding=1)
    ratio, u = new.compute_masks(mask[:, None])
    nvidia = ((raw - b.view(1, -1, 1, 1)) * ratio + b.view(1, -1, 1, 1)) * u
    truth = formula(x, w, b, mask[:, None], padding=1)[0]
    y, z = new(x, mask)[0], old(x, mask)[0]
    off = (nvidia - truth).abs().max()
    assert (y - z).abs().max() <= 1e-6 * 1000 and (y - truth).abs().max() <= 1e-7 * 1000 < off
    assert (z - nvidia).abs().max() <= 1.3e-7 * 1000   # the last rounding, of a sum near 1000, may differ
    grads = [torch.autograd.grad(m(x, mask)[0].square().sum(), [m.get_weight(), m.get_bias()]) for m in (new, old)]
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-3)


# ---------------------------------------------------------------- PConv: options against the formula
PCONV = {"1d": (M.PConv1d, (4, 6, 3), {"padding": 1}, (2, 4, 11)), "2d-default": (M.PConv2d, (3, 5), {}, (2, 3, 4, 5)),
         "2d-groups": (M.PConv2d, (4, 6, (3, 2)), {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 2}, (2, 4, 7, 8)),
         "2d-same": (M.PConv2d, (3, 4, (2, 4)), {"padding": "same"}, (2, 3, 6, 7)), "3d": (M.PConv3d, (2, 4, 3), {"padding": 1, "groups": 2}, (2, 2, 4, 5, 3))}


@pytest.mark.parametrize("legacy", [False, True], ids=["new", "legacy"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("kind", [torch.bool, torch.uint8, "float"], ids=ids)
@pytest.mark.parametrize("name", PCONV)
def test_pconv(name, kind, bias, legacy, device):
    cls, args, options, shape = PCONV[name]
    for dtype in TYPES:
        module = cls(*args, **options, bias=bias, legacy_behaviour=legacy, device=device, dtype=dtype)
        x, mask = torch.randn(shape, device=device, dtype=dtype), holes(shape[0], *shape[2:], device=device).to(dtype if kind == "float" else kind)
        b = module.get_bias().flatten() if bias else None
        truth, new = formula(x, module.get_weight(), b, mask[:, None], **options)
        if kind != "float":
            x = torch.where(mask[:, None] != 0, x, float("nan"))   # what a hole holds stays out
        leaf = x.clone().requires_grad_()
        y, got = module(leaf, mask)
        assert y.dtype == dtype and got.dtype == mask.dtype and torch.equal(got.double(), new[:, 0])
        close(y, truth, 8 * math.prod(module.get_weight().shape[1:]))
        y.sum().backward()
        assert leaf.grad.isfinite().all() and leaf.grad[(mask == 0)[:, None].expand(shape)].eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bool], ids=ids)
@pytest.mark.parametrize("name", PCONV)
def test_compute_masks(name, dtype, device):
    cls, args, options, shape = PCONV[name]
    module = cls(*args, **options, device=device)
    mask = holes(shape[0], 1, *shape[2:], device=device).to(dtype)
    ratio, new = module.compute_masks(mask)
    data = torch.ones(shape, device=device)
    _, u = formula(data, module.get_weight(), None, mask, **options)
    s = getattr(F, f"conv{len(shape) - 2}d")(mask.double().expand(shape), torch.ones_like(module.get_weight()).double(), None, **options)
    expected = (module.get_weight()[0].numel() / (s + 1e-8) * u)[:, :1]
    torch.testing.assert_close(ratio.double(), expected, rtol=1e-3 if dtype == torch.float16 else 1e-6, atol=0)
    assert torch.equal(new.double(), u[:, :1]) and new.dtype == dtype and ratio.dtype == (dtype if dtype.is_floating_point else torch.float32)


def test_weight_and_bias(device):
    module = M.PConv2d(3, 4, 5, bias=True, device=device)
    w, b = torch.randn(4, 3, 5, 5, device=device), torch.randn(4, device=device)
    assert module.set_weight(w) is module and module.set_bias(b) is module
    assert torch.equal(module.get_weight(), w) and module.get_bias().shape == (1, 4, 1, 1) and torch.equal(module.get_bias().flatten(), b)
    assert torch.equal(module.set_bias(-b.view(1, 4, 1, 1)).get_bias().flatten(), -b)
    assert isinstance(module.get_weight(), torch.nn.Parameter) and isinstance(module.get_bias(), torch.nn.Parameter)
    assert M.PConv2d(3, 4).get_bias() is None and M.PConv2d(3, 4).kernel_size == (1, 1)
    assert not M.PConv2d(3, 4).use_bias and not M.PConv2d(3, 4).legacy_behaviour


# ---------------------------------------------------------------- state_dicts
@pytest.mark.parametrize("bias", [False, True])
def test_pconv_state_dict(bias, device):
    """torch_pconv's keys, shapes and order: an optimiser's state finds its parameters too."""
    old = {"bias": torch.randn(1, 4, 1, 1)} if bias else {}
    old |= {"regular_conv.weight": torch.randn(4, 3, 3, 3), "mask_conv.weight": torch.ones(1, 1, 3, 3)}
    module = M.PConv2d(3, 4, 3, padding=1, bias=bias).to(device)
    assert [(k, v.shape) for k, v in module.state_dict().items()] == [(k, v.shape) for k, v in old.items()]
    assert [n for n, p in module.named_parameters() if p.requires_grad] == [k for k in old if k != "mask_conv.weight"]
    assert module.load_state_dict(saved(old)) == ([], [])
    x, mask = torch.randn(2, 3, 6, 6, device=device), holes(2, 6, 6, device=device).float()
    truth, _ = formula(x, old["regular_conv.weight"].to(device), old["bias"].flatten().to(device) if bias else None, mask[:, None], padding=1)
    close(module(x, mask)[0], truth, 100)


@pytest.mark.parametrize("groups, kernel", [(1, 3), (3, 3), (1, (1, 5))])
def test_pconv_is_drawn_as_a_plain_convolution(groups, kernel):
    """The bounds of the weight and of the bias are those of torch.nn: by the window and the channels that a filter reads."""
    made, plain = M.PConv2d(3, 6000, kernel, groups=groups, bias=True), torch.nn.Conv2d(3, 6000, kernel, groups=groups)
    for ours, theirs in ((made.get_weight(), plain.weight), (made.get_bias(), plain.bias)):
        assert ours.abs().max().item() == pytest.approx(theirs.abs().max().item(), rel=0.01)


@pytest.mark.parametrize("bias", [False, True])
def test_pconv_takes_a_plain_state_dict(bias, device):
    """Of torch.nn.Conv2d, and of NVIDIA's module with what some versions keep; also inside of a net."""
    plain = torch.nn.Conv2d(3, 4, 3, bias=bias)
    module = M.PConv2d(3, 4, 3, bias=bias).to(device)
    kept = dict(plain.state_dict())
    for state in (plain.state_dict(), kept | {"weight_maskUpdater": torch.ones(1, 1, 3, 3)}):
        module.reset_parameters()
        assert module.load_state_dict(saved(state)) == ([], [])
        assert torch.equal(module.get_weight().cpu(), plain.weight) and (not bias or torch.equal(module.get_bias().flatten().cpu(), plain.bias))
    assert kept.keys() == plain.state_dict().keys()
    net = torch.nn.Sequential(torch.nn.Identity(), M.PConv2d(3, 4, 3, bias=bias))
    assert net.load_state_dict({f"1.{k}": v for k, v in kept.items()}) == ([], [])
    assert torch.equal(net[1].get_weight(), plain.weight)


def test_wrong_state_dicts():
    module = M.PConv2d(3, 4, 3, bias=True)
    good = module.state_dict()
    for change, text in (({"mask_conv.weight": torch.full((1, 1, 3, 3), 2.0)}, "mask_conv.weight: has values other than 1, allowed: ones"),
                         ({"regular_conv.weight": torch.ones(4, 3, 5, 5)}, "size mismatch for regular_conv.weight"),
                         ({"bias": torch.ones(5)}, "size mismatch for bias"), ({"more": torch.ones(1)}, 'Unexpected key(s) in state_dict: "more"')):
        with pytest.raises(RuntimeError, match=re.escape(text)):
            module.load_state_dict(good | change)
    with pytest.raises(RuntimeError, match=re.escape('Missing key(s) in state_dict: "bias"')):
        module.load_state_dict({k: v for k, v in good.items() if k != "bias"})


# ---------------------------------------------------------------- NVIDIA's
PARTIAL = {"1d": (M.PartialConv1d, (4, 6, 3), {"padding": 1}, (2, 4, 11)), "2d": (M.PartialConv2d, (3, 5, 3), {"padding": 1}, (2, 3, 6, 7)),
           "2d-groups": (M.PartialConv2d, (4, 6, (3, 2)), {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2), "groups": 2}, (2, 4, 7, 8)),
           "2d-same": (M.PartialConv2d, (3, 4, (2, 4)), {"padding": "same"}, (2, 3, 6, 7)), "3d": (M.PartialConv3d, (2, 4, 3), {"padding": 1}, (2, 2, 4, 5, 3)),
           "t1d": (M.PartialConvTranspose1d, (4, 6, 4), {"stride": 2, "padding": 1}, (2, 4, 6)),
           "t2d": (M.PartialConvTranspose2d, (4, 6, 3), {"stride": 2, "output_padding": 1, "groups": 2}, (2, 4, 4, 5)),
           "t3d": (M.PartialConvTranspose3d, (2, 3, 2), {"stride": 2}, (2, 2, 3, 2, 3))}


def transposed(cls):
    return "Transpose" in cls.__name__


@pytest.mark.parametrize("given", ["none", "shared", "own"])
@pytest.mark.parametrize("multi", [False, True], ids=["one", "multi"])
@pytest.mark.parametrize("name", PARTIAL)
def test_partial(name, multi, given, device):
    """The result, with the new mask if asked, for no mask, one for the batch and one for each image."""
    cls, args, options, shape = PARTIAL[name]
    n, c, o = shape[0], shape[1], args[1]
    for i, dtype in enumerate(TYPES):
        module = cls(*args, **options, bias=i % 2 == 0, device=device, dtype=dtype, multi_channel=multi, return_mask=True)
        x = torch.randn(shape, device=device, dtype=dtype)
        mask = None if given == "none" else holes(1 if given == "shared" else n, c if multi else 1, *shape[2:], device=device)
        mask = mask if mask is None or i > 1 else mask.to(dtype)   # both multiplied and selected
        truth, new = formula(x, module.weight, module.bias, torch.ones_like(x) if mask is None else mask, transposed(cls), **options)
        y, got = module(x) if mask is None else module(x, mask)
        close(y, truth, 8 * math.prod(module.weight.shape[1:]))
        rows = n if given == "own" or (multi and given == "none") else 1
        assert got.shape == (rows, o if multi else 1, *y.shape[2:]) and got.dtype == (dtype if mask is None else mask.dtype)
        assert torch.equal(got.double(), new[:rows, :got.shape[1]])
        module.return_mask = False
        assert torch.equal(module(x, mask), y)


def test_padding_without_a_mask(device):
    """Where no window meets the border it is a convolution; there, the missing pixels are made up for."""
    x = torch.ones(1, 1, 5, 5, device=device)
    module = M.PartialConv2d(1, 1, 3, padding=1, bias=False).to(device)
    torch.nn.init.ones_(module.weight)
    assert F.conv2d(x, module.weight, padding=1)[0, 0, 0, 0] == 4
    torch.testing.assert_close(module(x), torch.full_like(x, 9.0))


def test_no_mask_of_an_earlier_call_is_used(device):
    """NVIDIA's module keeps its last mask and, given none and the same size, uses it again."""
    module = M.PartialConv2d(2, 3, 3, padding=1, return_mask=True).to(device)
    x = torch.randn(1, 2, 6, 6, device=device)
    before = module(x)
    module(x, torch.zeros(1, 1, 6, 6, device=device))
    assert all(map(torch.equal, module(x), before)) and before[1].eq(1).all()
    assert not [k for k, v in vars(module).items() if isinstance(v, torch.Tensor)]


def test_unbatched_and_output_size(device):
    module = M.PartialConv2d(4, 6, 3, padding=1, multi_channel=True, return_mask=True, act="relu").to(device)
    x, mask = torch.randn(2, 4, 6, 6, device=device), holes(2, 4, 6, 6, device=device)
    y, new = module(x, mask)
    torch.testing.assert_close(module(x[0], mask[0]), (y[0], new[0]), rtol=1e-5, atol=1e-6)
    assert y.min() == 0 and module(x[0])[1].shape == (6, 6, 6)
    up = M.PartialConvTranspose2d(4, 4, 3, stride=2, groups=4).to(device)
    assert up(x, output_size=(14, 14)).shape == (2, 4, 14, 14) and up(x, mask[:, :1]).shape == (2, 4, 13, 13)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_other_paddings_repeat_holes_too(mode, device):
    module = M.PartialConv2d(2, 3, 3, padding=(1, 2), padding_mode=mode, return_mask=True).to(device)
    x, mask = torch.randn(2, 2, 6, 6, device=device), holes(2, 1, 6, 6, device=device)
    wide = lambda t: F.pad(t, (2, 2, 1, 1), mode=mode)
    for kind in (torch.bool, torch.float32):
        truth, new = formula(wide(x), module.weight, module.bias, wide(mask.float()))
        y, got = module(torch.where(mask, x, float("nan")) if kind == torch.bool else x, mask.to(kind))
        close(y, truth, 100)
        assert torch.equal(got.double(), new[:, :1]) and got.dtype == kind
    plain = torch.nn.Conv2d(2, 3, 3, padding=(1, 2), padding_mode=mode).to(device)
    plain.load_state_dict(module.state_dict())
    torch.testing.assert_close(module(x)[0], plain(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", PARTIAL)
def test_nvidia_state_dict(name, device):
    """weight and bias, as their twins of torch.nn have; the ones that some versions keep are passed over."""
    cls, args, options, shape = PARTIAL[name]
    twin = getattr(torch.nn, cls.__name__[len("Partial"):])(*args, **options)
    module = cls(*args, **options).to(device)
    assert isinstance(module, type(twin)) and list(module.state_dict()) == ["weight", "bias"]
    ones = {"weight_maskUpdater": torch.ones(1, 1, *module.kernel_size)}
    for state in (twin.state_dict(), dict(twin.state_dict()) | ones):
        assert module.load_state_dict(saved(state)) == ([], [])
    assert torch.nn.Sequential(module).load_state_dict({f"0.{k}": v for k, v in (dict(twin.state_dict()) | ones).items()}) == ([], [])
    assert twin.load_state_dict(module.state_dict()) == ([], [])
    x, mask = torch.randn(shape, device=device), holes(shape[0], 1, *shape[2:], device=device).float()
    close(module(x, mask), formula(x, twin.weight.to(device), twin.bias.to(device), mask, transposed(cls), **options)[0], 200)


# ---------------------------------------------------------------- as modules
EVERY = {**{f"p{k}": v for k, v in PCONV.items()}, **PARTIAL}


def sample(name, device="cpu", dtype=torch.float32, **more):
    cls, args, options, shape = EVERY[name]
    mask = holes(shape[0], *([] if name in ("p" + k for k in PCONV) else [1]), *shape[2:], device=device)
    return cls(*args, **options, **more).to(device, dtype), torch.randn(shape, device=device, dtype=dtype), mask


@pytest.mark.parametrize("name", EVERY)
def test_copies_types_and_layouts(name, device):
    module, x, mask = sample(name, device, bias=True)
    expected = module(x, mask)
    stream = io.BytesIO()
    torch.save(module, stream)
    stream.seek(0)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), torch.load(stream, weights_only=False)):
        got = other(x, mask)
        assert repr(other) == repr(module) and all(map(torch.equal, got, expected) if isinstance(got, tuple) else [torch.equal(got, expected)])
    result = lambda r: r[0] if isinstance(r, tuple) else r
    assert result(module.to(torch.bfloat16)(x.bfloat16(), mask)).dtype == torch.bfloat16
    module, x, mask = sample(name, device, torch.float64, bias=True)
    last = x.movedim(1, -1).contiguous().movedim(-1, 1)
    torch.testing.assert_close(result(module(last, mask)), result(module(x, mask)))


@pytest.mark.parametrize("name", EVERY)
def test_gradients(name, device):
    module, x, mask = sample(name, device, torch.float64, bias=True)
    names = [n for n, p in module.named_parameters() if p.requires_grad]

    def run(x, *parameters):
        y = torch.func.functional_call(module, dict(zip(names, parameters)), (x, mask))
        return y[0] if isinstance(y, tuple) else y
    leaves = [x.requires_grad_(), *(dict(module.named_parameters())[n] for n in names)]
    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)


@pytest.mark.parametrize("name", ["p2d-groups", "2d", "t2d"])
def test_compile_and_trace(name, device):
    torch.compiler.reset()
    module, x, mask = sample(name, device, bias=True)
    expected = module(x, mask)
    torch.testing.assert_close(torch.compile(module, fullgraph=True, backend="aot_eager")(x, mask), expected)
    torch.testing.assert_close(torch.export.export(module, (x, mask)).module()(x, mask), expected)
    if name != "t2d":   # as the twin's, its sizes are read in Python
        torch.testing.assert_close(torch.fx.symbolic_trace(module, concrete_args=None)(x, mask), expected)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        low = module(x, mask)
    assert (low[0] if isinstance(low, tuple) else low).dtype == torch.bfloat16


def test_training_goes_as_by_the_formula(device):
    """Three steps of an optimiser over a layer of each kind end where the formula's end."""
    module, x, mask = sample("p2d-groups", device, torch.float64, bias=True)
    options = EVERY["p2d-groups"][2]
    w, b = (p.detach().clone().requires_grad_() for p in (module.get_weight(), module.get_bias()))
    runs = [(lambda: module(x, mask)[0], [module.get_weight(), module.get_bias()]), (lambda: formula(x, w, b.flatten(), mask[:, None], **options)[0], [w, b])]
    for run, parameters in runs:
        optimiser = torch.optim.SGD(parameters, 0.05, momentum=0.9)
        for _ in range(3):
            optimiser.zero_grad()
            run().square().mean().backward()
            optimiser.step()
    torch.testing.assert_close(*([p.detach() for p in parameters] for _, parameters in runs))


def test_printing():
    assert repr(M.PConv2d(3, 8, 3, padding=1, bias=True)).split("\n") == [
        "weft.PConv2d(", "  bias=True, legacy_behaviour=False",
        "  (regular_conv): weft.Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)",
        "  (mask_conv): weft.Conv2d(1, 1, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), bias=False)", ")"]
    assert repr(M.PartialConv2d(3, 8, 3)) == "weft.PartialConv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))"
    assert repr(M.PartialConvTranspose1d(3, 8, 3, multi_channel=True, return_mask=True, act="relu")) == (
        "weft.PartialConvTranspose1d(3, 8, kernel_size=(3,), stride=(1,), act='relu', multi_channel=True, return_mask=True)")


# ---------------------------------------------------------------- wrong input
P, N = M.PConv2d(3, 4, 3, bias=True), M.PartialConv2d(3, 4, 3)
multi, up = M.PartialConv2d(3, 4, 3, multi_channel=True), M.PartialConvTranspose2d(3, 4, 3)
x, m = torch.rand(2, 3, 6, 6), torch.ones(2, 6, 6)
WRONG = {
    "p-x-kind": (lambda: P(None, m), TypeError, "PConv2d: x is NoneType, allowed: Tensor"),
    "p-x-rank": (lambda: P(x[:, 0], m), TypeError, "PConv2d: x has 3 dimensions [2, 6, 6], allowed: 4"),
    "p-x-type": (lambda: P(x.to(torch.uint8), m), TypeError, "PConv2d: x is uint8, allowed: float32, float64, float16 or bfloat16"),
    "p-x-other-type": (lambda: P(x.double(), m), TypeError, "PConv2d: x is float64, allowed: the type of the weight, float32"),
    "p-x-channels": (lambda: P(x[:, :2], m), RuntimeError, "input: has 2 channels, allowed with groups=1 and a weight of (4, 3, ...): 3"),
    "p-mask-kind": (lambda: P(x, [1]), TypeError, "PConv2d: mask is list, allowed: Tensor"),
    "p-mask-rank": (lambda: P(x, x), TypeError, "PConv2d: mask has 4 dimensions [2, 3, 6, 6], allowed: 3"),
    "p-mask-type": (lambda: P(x, m.long()), TypeError, "PConv2d: mask is int64, allowed: bool, uint8, float32, float64, float16 or bfloat16"),
    "p-mask-size": (lambda: P(x, m[:, :5]), TypeError, "PConv2d: mask is [2, 5, 6], allowed with x of [2, 3, 6, 6]: [2, 6, 6]"),
    "p-mask-batch": (lambda: P(x, m[:1]), TypeError, "PConv2d: mask is [1, 6, 6], allowed with x of [2, 3, 6, 6]: [2, 6, 6]"),
    "p-1d": (lambda: M.PConv1d(3, 4)(x, m), TypeError, "PConv1d: x has 4 dimensions [2, 3, 6, 6], allowed: 3"),
    "p-3d": (lambda: M.PConv3d(3, 4)(x, m), TypeError, "PConv3d: x has 4 dimensions [2, 3, 6, 6], allowed: 5"),
    "p-masks-kind": (lambda: P.compute_masks(None), TypeError, "PConv2d.compute_masks: mask is NoneType, allowed: Tensor"),
    "p-masks-rank": (lambda: P.compute_masks(m), TypeError, "PConv2d.compute_masks: mask is [2, 6, 6], allowed: 4 dimensions, the second of one channel"),
    "p-masks-channels": (lambda: P.compute_masks(x), TypeError, "PConv2d.compute_masks: mask is [2, 3, 6, 6], allowed: 4 dimensions"),
    "p-masks-type": (lambda: P.compute_masks(m[:, None].int()), TypeError, "PConv2d.compute_masks: mask is int32, allowed: bool, uint8, float32"),
    "p-weight-kind": (lambda: P.set_weight(1.0), TypeError, "PConv2d.set_weight: w is float, allowed: Tensor"),
    "p-weight-shape": (lambda: P.set_weight(x), RuntimeError, "PConv2d.set_weight: got [2, 3, 6, 6], allowed: [4, 3, 3, 3]"),
    "p-bias-kind": (lambda: P.set_bias(None), TypeError, "PConv2d.set_bias: b is NoneType, allowed: Tensor"),
    "p-bias-shape": (lambda: P.set_bias(x[0, 0, 0]), RuntimeError, "PConv2d.set_bias: got [6], allowed: [1, 4, 1, 1]"),
    "p-no-bias": (lambda: M.PConv2d(3, 4).set_bias(torch.ones(4)), RuntimeError, "PConv2d.set_bias: the module has no bias, allowed: one made with bias=True"),
    "p-groups": (lambda: M.PConv2d(3, 4, groups=2), ValueError, "in_channels must be divisible by groups"),
    "p-small": (lambda: P(x[..., :2], m[..., :2]), RuntimeError, "input: spatial axis 1 has 2 elements, too few for kernel 3"),
    "n-mask-kind": (lambda: N(x, 1.0), TypeError, "PartialConv2d: mask_in is float, allowed: Tensor or None"),
    "n-mask-rank": (lambda: N(x, m), RuntimeError, "PartialConv2d: mask_in is [2, 6, 6], allowed with input of [2, 3, 6, 6] and multi_channel=False: "
                    "4 dimensions and 1 channel"),
    "n-mask-channels": (lambda: N(x, x), RuntimeError, "PartialConv2d: mask_in is [2, 3, 6, 6], allowed with input of [2, 3, 6, 6] and multi_channel=False"),
    "n-multi-channels": (lambda: multi(x, x[:, :1]), RuntimeError, "multi_channel=True: 4 dimensions and 3 channels"),
    "n-mask-type": (lambda: N(x, m[:, None].int()), RuntimeError, "mask: is int32, allowed: bool, uint8, float32, float64, float16 or bfloat16"),
    "n-mask-batch": (lambda: N(x[:1], m[:, None]), RuntimeError, "mask: has 2 elements along axis n, allowed: 1 or 1, as input has"),
    "n-mask-size": (lambda: N(x, m[:, None, :5]), RuntimeError, "mask: has 5 elements along axis h, allowed: 6, as input has"),
    "n-input-kind": (lambda: N(None), TypeError, "partial_conv2d: input is NoneType, allowed: Tensor"),
    "n-input-rank": (lambda: N(x[0, 0]), RuntimeError, "partial_conv2d: input has 2 dimensions"),
    "n-input-type": (lambda: N(x.long()), RuntimeError, "input: is int64, allowed: float32, float64, float16 or bfloat16"),
    "n-multi-kind": (lambda: M.PartialConv2d(3, 4, 3, multi_channel=1), TypeError, "PartialConv2d: multi_channel is 1, allowed: True or False"),
    "n-return-kind": (lambda: M.PartialConvTranspose3d(3, 4, 3, return_mask=None), TypeError,
                      "PartialConvTranspose3d: return_mask is None, allowed: True or False"),
    "n-act": (lambda: M.PartialConv1d(3, 4, 3, act="gelu"), ValueError, "act: is 'gelu', allowed: None, 'relu' or 'clip'"),
    "n-padding-mode": (lambda: M.PartialConv3d(3, 4, 3, padding_mode="wrap"), ValueError, "padding_mode must be one of"),
    "t-mask": (lambda: up(x, x), RuntimeError, "PartialConvTranspose2d: mask_in is [2, 3, 6, 6]"),
    "t-size": (lambda: up(x, None, [6, 6]), ValueError, "requested an output size of [6, 6]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name):
    run, kind, text = WRONG[name]
    with pytest.raises(kind, match=re.escape(text)):
        run()
