"""cross_entropy against torch in every combination: targets, class weights, ignored labels, smoothing, reductions, types, layouts."""
import itertools

import pytest
import torch
import torch.nn.functional as F

import capi

REDUCTIONS = ["none", "mean", "sum"]
SHAPES = [(6, 5, 1), (3, 4, 7), (2, 19, 4, 3), (2, 3, 2, 3, 4), (1, 1, 5)]
NAN, INF = float("nan"), float("inf")
SAVED = {torch.float32: "f32", torch.float64: "f64"}


class Case:
    """One set of options, run by weft and by torch."""

    def __init__(self, reduction="mean", weights=None, ignore=-100, smooth=0.0, probs=False, form="first"):
        self.reduction, self.weights, self.ignore, self.smooth, self.probs, self.form = reduction, weights, ignore, smooth, probs, form

    def text(self, pass_, extra, x, tensors):
        names = {role: t for role, t in tensors.items() if t.dim() > 2}
        types = "".join(f",{role}={capi.DTYPES[t.dtype]}" for role, t in tensors.items() if t.dtype != x.dtype)
        options = f"probs{int(self.probs)}weighted{int(self.weights is not None)}ignore{self.ignore}smooth{self.smooth!r}"
        return (f"cross_entropy{x.dim() - 2}d:{pass_}:{capi.DTYPES[x.dtype]}{types}:{capi.layouts(self.form, **names)}:"
                f"{capi.sizes(x.shape)}:{options}reduction{REDUCTIONS.index(self.reduction)}{extra}")

    def run(self, pass_, x, target, extra="", **others):
        tensors = {"src": x, "target": target if self.probs else target.unsqueeze(1), **others}
        tensors = {role: capi.arrange(t, self.form) if t.dim() > 2 else t for role, t in tensors.items()}
        if self.weights is not None:
            tensors["weights"] = self.weights
        return capi.run(self.text(pass_, extra, x, tensors), **tensors)

    def rows(self, x):
        """The shape of one value a place, with the channel axis kept."""
        return (x.shape[0], 1, *x.shape[2:])

    def loss_shape(self, x):
        return self.rows(x) if self.reduction == "none" else (1,)

    def forward(self, x, target):
        """Loss and log-sum-exp."""
        wide = x.dtype if x.dtype in SAVED else torch.float32
        got = self.run("fwd", x, target, dst=torch.full(self.loss_shape(x), 7, dtype=x.dtype), lse=torch.full(self.rows(x), 7, dtype=wide))
        loss = got["dst"]
        return (loss.squeeze(1) if self.reduction == "none" else loss.reshape(())), got["lse"]

    def backward(self, x, target, lse, dy, old=None, extra=""):
        dy = dy.unsqueeze(1) if self.reduction == "none" else dy.reshape(1)
        return self.run("bwd", x, target, extra, lse=lse, diff_dst=dy, diff_src=torch.full_like(x, 7) if old is None else old)["diff_src"]

    def torch(self, x, target):
        weights = None if self.weights is None else self.weights.to(x.dtype)
        target = target.to(x.dtype) if self.probs else target
        return F.cross_entropy(x, target, weights, ignore_index=self.ignore, label_smoothing=self.smooth, reduction=self.reduction)

    def check(self, x, target):
        """Both passes against torch in double."""
        exact = x.double().requires_grad_()
        want = self.torch(exact, target)
        loss, lse = self.forward(x, target)
        capi.close(loss, want.detach(), x.dtype)
        capi.close(lse.squeeze(1), torch.logsumexp(exact.detach(), 1), lse.dtype)
        dy = torch.randn_like(want).to(x.dtype)
        (dx,) = torch.autograd.grad(want, exact, dy.double())
        capi.close(self.backward(x, target, lse, dy), dx, x.dtype)


def labels(shape, ignore, some=True):
    target = torch.randint(shape[1], (shape[0], *shape[2:]))
    if some:
        target[torch.rand(target.shape) < 0.3] = ignore
    target.view(-1)[:1] = (ignore + 1) % shape[1]        # one counts for sure
    return target


def probabilities(shape, dtype):
    return torch.rand(shape, dtype=torch.float64).to(dtype)


OPTIONS = list(itertools.product(["labels", "ignore inside", "probs"], REDUCTIONS, [False, True], [0.0, 0.1, 1.0], capi.FLOATS))
PLACES = list(itertools.product(SHAPES, capi.FORMS))


@pytest.mark.parametrize("kind,reduction,weighted,smooth,dtype", OPTIONS)
def test_every_combination(kind, reduction, weighted, smooth, dtype):
    options = (kind, reduction, weighted, smooth, dtype)
    for i in range(OPTIONS.index(options) % 7, len(PLACES), 7):      # two or three of the places, others in turn
        shape, form = PLACES[i]
        x = (2 * torch.randn(shape, dtype=torch.float64)).to(dtype)
        ignore = shape[1] - 1 if kind == "ignore inside" and shape[1] > 1 else -100
        weights = (0.1 + torch.rand(shape[1], dtype=torch.float64)).to(dtype if i % 2 else torch.float32) if weighted else None
        target = probabilities(shape, dtype) if kind == "probs" else labels(shape, ignore)
        Case(reduction, weights, ignore, smooth, kind == "probs", form).check(x, target)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("smooth", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("probs", [False, True])
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 3, 0, 4)], ids=str)
def test_no_elements(shape, probs, weighted, smooth, reduction):
    case = Case(reduction, torch.rand(3) if weighted else None, smooth=smooth, probs=probs)
    x = torch.randn(shape)
    target = torch.rand(shape) if probs else labels(shape, -100)
    loss, _ = case.forward(x, target)
    capi.close(loss, case.torch(x, target), torch.float32)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("smooth", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_nothing_but_ignored_labels(weighted, smooth, reduction):
    case = Case(reduction, torch.rand(3) if weighted else None, smooth=smooth)
    x, target = torch.randn(2, 3, 4, requires_grad=True), torch.full((2, 4), -100)
    want = case.torch(x, target)
    loss, lse = case.forward(x.detach(), target)
    capi.close(loss, want.detach(), torch.float32)
    assert reduction != "mean" or loss.isnan()
    dy = torch.ones_like(want)
    (dx,) = torch.autograd.grad(want, x, dy)
    got = case.backward(x.detach(), target, lse, dy)
    assert torch.equal(got, dx) and not got.any()


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_weights_of_zero(reduction):
    x, target = torch.randn(2, 3, 4), torch.randint(3, (2, 4))
    case = Case(reduction, torch.zeros(3))
    capi.close(case.forward(x, target)[0], case.torch(x, target), torch.float32)
    Case("mean", torch.tensor([0.0, 1.0, 0.0])).check(x, target.fill_(0).index_fill(1, torch.tensor([2]), 1))


@pytest.mark.parametrize("smooth", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("probs", [False, True])
def test_special_values_go_where_torch_sends_them(probs, weighted, smooth):
    rows = [[NAN, 1, 2], [1, NAN, 2], [INF, 1, 2], [1, INF, 2], [-INF, 1, 2], [1, -INF, 2], [-INF, -INF, -INF], [1e4, -1e4, 9e3], [1, 2, 3]]
    x = torch.tensor(rows).unsqueeze(2).repeat(2, 1, 1).requires_grad_()
    target = torch.zeros(18, 1, dtype=torch.int64)
    target[9:] = -100                                    # the same rows, ignored
    if probs:
        target = F.one_hot(target.clamp(min=0), 3).transpose(1, 2).float()
    case = Case("none", torch.tensor([1.0, 0.0, 2.0]) if weighted else None, smooth=smooth, probs=probs)
    want = case.torch(x, target)
    loss, lse = case.forward(x.detach(), target)
    capi.close(loss, want.detach(), torch.float32)
    assert torch.equal(loss.isposinf(), want.isposinf())
    dy = torch.ones_like(want)
    capi.close(case.backward(x.detach(), target, lse, dy), torch.autograd.grad(want, x, dy)[0], torch.float32)


@pytest.mark.parametrize("wrong", [3, -1, 2**40, -2**63, 2**63 - 1])
def test_a_target_that_is_no_class_gives_nan(wrong):
    x, target = torch.randn(2, 3, 4), torch.randint(3, (2, 4))
    good = [Case(r).forward(x, target)[0] for r in REDUCTIONS]
    target[1, 2], target[0, 0] = wrong, -100
    bad = torch.zeros(2, 4, dtype=torch.bool)
    bad[1, 2] = True
    loss, lse = Case("none").forward(x, target)
    assert torch.equal(loss.isnan(), bad) and loss[0, 0] == 0
    kept = ~bad
    kept[0, 0] = False
    assert torch.equal(loss[kept], good[0][kept])
    for smooth in (0.0, 0.1):
        for reduction in ("mean", "sum"):
            assert Case(reduction, smooth=smooth).forward(x, target)[0].isnan()
        none = Case("none", smooth=smooth).backward(x, target, lse, torch.ones(2, 4))
        assert torch.equal(none.isnan(), bad.unsqueeze(1).expand(2, 3, 4))
        assert torch.equal(Case("sum", smooth=smooth).backward(x, target, lse, torch.ones(1)).isnan(), none.isnan())
        mean = Case("mean", smooth=smooth).backward(x, target, lse, torch.ones(1))
        assert mean[0, :, 0].eq(0).all() and mean.isnan().sum() == 3 * 7     # all but the ignored place


def test_an_ignored_label_beyond_double_precision():
    x, target = torch.randn(2, 3, 4), torch.randint(3, (2, 4))
    target[0, 1], target[0, 2] = 2**60 + 1, 2**60        # equal as doubles
    loss, _ = Case("none", ignore=2**60 + 1).forward(x, target)
    assert loss[0, 1] == 0 and loss[0, 2].isnan()


def test_many_rows_are_summed_in_spans():
    """More rows than spans: each span has several, some one more than others."""
    x, target = torch.randn(3, 2, 5000), labels((3, 2, 5000), -100)
    Case("mean", torch.rand(2)).check(x, target)
    Case("sum").check(x, target)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_gradient_accumulates(reduction):
    case = Case(reduction, torch.rand(4))
    x, target, old = torch.randn(2, 4, 3), torch.randint(4, (2, 3)), torch.randn(2, 4, 3)
    _, lse = case.forward(x, target)
    dy = torch.randn(2, 3) if reduction == "none" else torch.randn(1)
    plain = case.backward(x, target, lse, dy)
    capi.close(case.backward(x, target, lse, dy, old.clone(), ":acc0.5_-2"), 0.5 * plain - 2 * old, torch.float32)


@pytest.mark.parametrize("probs", [False, True])
def test_gradient_is_the_slope_of_the_forward_pass(probs):
    case = Case("mean", torch.rand(4, dtype=torch.float64), 1, 0.2, probs)
    x, v = torch.randn(2, 4, 3, dtype=torch.float64), torch.randn(2, 4, 3, dtype=torch.float64)
    target = probabilities(x.shape, x.dtype) if probs else labels(x.shape, 1)
    slope = capi.slope(lambda z: case.forward(z, target)[0], x, v)
    dx = case.backward(x, target, case.forward(x, target)[1], torch.ones(1, dtype=x.dtype))
    assert abs(slope - (dx * v).sum()) < 1e-8


def test_beyond_two_to_the_31():
    x, target = capi.far((2, 3, 5), torch.bfloat16), torch.randint(3, (2, 1, 5))
    x.copy_(torch.randn(x.shape))
    loss, lse = torch.empty(1), torch.empty(2, 1, 5)
    capi.run(f"cross_entropy1d:fwd:bf16,dst=f32:{capi.layouts('strided', src=x)}:n2c3w5:", src=x, target=target, dst=loss, lse=lse)
    capi.close(loss.reshape(()), F.cross_entropy(x.double(), target.squeeze(1)), torch.float32)


def test_refusals():
    head = "cross_entropy1d:fwd:f32:ncw:n2c3w4:"
    for options, message in [("probs2", "probs is 2, allowed: 0 or 1"), ("weighted-1", "weighted is -1, allowed: 0 or 1"),
                             ("reduction3", r"reduction is 3, allowed: 0 \(none\), 1 \(mean\) or 2 \(sum\)"),
                             ("smooth1.5", "smooth is 1.5, allowed: 0..1"),
                             ("relu1", "expected an attribute: probs weighted ignore smooth reduction")]:
        with pytest.raises(capi.WeftError, match=message):
            capi.parse(head + options)
    with pytest.raises(capi.WeftError, match="channels c is 0, allowed: 1..2"):
        capi.parse("cross_entropy1d:fwd:f32:ncw:n2c0w4:")
    with pytest.raises(capi.WeftError, match="target: data type is f32 .* which cross_entropy does not take there"):
        capi.parse("cross_entropy1d:fwd:f32,target=f32:ncw:n2c3w4:")
    with pytest.raises(capi.WeftError, match="lse: data type is f16"):
        capi.parse("cross_entropy1d:fwd:f16,lse=f16:ncw:n2c3w4:")
    with pytest.raises(capi.WeftError, match="weights takes no part in pass fwd of cross_entropy"):
        capi.parse("cross_entropy1d:fwd:f32,weights=f32:ncw:n2c3w4:")
    with pytest.raises(capi.WeftError, match="weights: the pointer is NULL, allowed: 3 elements of f32"):
        x = torch.randn(2, 3, 4)
        capi.run(head + "weighted1", src=x, target=torch.zeros(2, 1, 4, dtype=torch.int64), dst=torch.empty(1), lse=torch.empty(2, 1, 4))
