"""batch_norm against torch: training with running statistics, evaluation, affine or not, gradients in both, types and layouts."""
import itertools

import pytest
import torch
import torch.nn.functional as F

import capi

SHAPES = [(6, 5, 1), (3, 4, 7), (2, 17, 4, 3), (2, 3, 2, 3, 4), (1, 1, 6)]
NAN, INF = float("nan"), float("inf")


class Case:
    """One set of options, run by weft and by torch. stats, params: the types of statistics and parameters."""

    def __init__(self, channels, train=True, affine=True, track=True, eps=1e-5, momentum=0.1, form="first", stats=torch.float32,
                 params=torch.float32):
        self.train, self.track, self.eps, self.momentum, self.form, self.stats = train, track or not train, eps, momentum, form, stats
        self.options = f"train{int(train)}affine{int(affine)}track{int(self.track)}eps{eps!r}momentum{momentum!r}"
        self.weights, self.bias = ((torch.randn(channels).to(params), torch.randn(channels).to(params)) if affine else (None, None))
        self.mean = torch.randn(channels, dtype=stats) if self.track else None
        self.var = 0.5 + torch.rand(channels, dtype=stats) if self.track else None

    def run(self, pass_, extra, tensors):
        tensors = {role: capi.arrange(t, self.form) if t.dim() > 2 else t for role, t in tensors.items() if t is not None}
        x = tensors["src"]
        types = "".join(f",{role}={capi.DTYPES[t.dtype]}" for role, t in tensors.items() if t.dtype != x.dtype)
        return capi.run(f"batch_norm{x.dim() - 2}d:{pass_}:{capi.DTYPES[x.dtype]}{types}:{capi.layouts(self.form, **tensors)}:"
                        f"{capi.sizes(x.shape)}:{self.options}{extra}", **tensors)

    def vector(self, x, wanted=True, dtype=None):
        return torch.full((x.shape[1],), 7, dtype=dtype or self.stats) if wanted else None

    def forward(self, x):
        """dst, save_mean and save_invstd where there are any, running mean and var after it."""
        running = [None if t is None else t.clone() for t in (self.mean, self.var)]
        got = self.run("fwd", "", dict(src=x, weights=self.weights, bias=self.bias, mean=running[0], var=running[1],
                                       dst=torch.full_like(x, 7), save_mean=self.vector(x, self.train),
                                       save_invstd=self.vector(x, self.train)))
        return got["dst"], got.get("save_mean"), got.get("save_invstd"), *running

    def backward(self, x, saved, dy, extra="", old=None):
        """diff_src, diff_weights, diff_bias."""
        affine = self.weights is not None
        outputs = old or [torch.full_like(x, 7)] + [self.vector(x, affine, affine and self.weights.dtype) for _ in range(2)]
        running = (None, None) if self.train else (self.mean, self.var)
        got = self.run("bwd", extra, dict(src=x, weights=self.weights, mean=running[0], var=running[1], save_mean=saved[0],
                                          save_invstd=saved[1], diff_dst=dy,
                                          diff_src=outputs[0], diff_weights=outputs[1], diff_bias=outputs[2]))
        return [got.get(role) for role in ("diff_src", "diff_weights", "diff_bias")]

    def torch(self, x, dtype=torch.float64):
        """The same in torch: dst, running mean and var after it, and the leaves to differentiate by."""
        leaves = [None if t is None else t.to(dtype).clone().requires_grad_() for t in (x, self.weights, self.bias)]
        running = [None if t is None else t.to(dtype).clone() for t in (self.mean, self.var)]
        return F.batch_norm(leaves[0], *running, leaves[1], leaves[2], self.train, self.momentum, self.eps), running, leaves

    def check(self, x):
        want, running, leaves = self.torch(x)
        got = self.forward(x)
        capi.close(got[0], want.detach(), x.dtype)
        if self.train:
            exact = x.double().transpose(0, 1).flatten(1)
            capi.close(got[1], exact.mean(1), self.stats)
            capi.close(got[2], (exact.var(1, unbiased=False) + self.eps).rsqrt(), self.stats)
        if self.track:
            capi.close(got[3], running[0], self.stats)
            capi.close(got[4], running[1], self.stats)
            assert self.train or (torch.equal(got[3], self.mean) and torch.equal(got[4], self.var))
        dy = torch.randn_like(want).to(x.dtype)
        leaves = [t for t in leaves if t is not None]
        gradients = torch.autograd.grad(want, leaves, dy.double())
        for mine, theirs, leaf in zip(self.backward(x, got[1:3], dy), gradients, (x, self.weights, self.bias)):
            capi.close(mine, theirs, leaf.dtype)


OPTIONS = list(itertools.product([True, False], [True, False], [True, False], capi.FLOATS, SHAPES))


@pytest.mark.parametrize("train,affine,track,dtype,shape", OPTIONS)
def test_every_combination(train, affine, track, dtype, shape):
    i = OPTIONS.index((train, affine, track, dtype, shape))
    x = (2 * torch.randn(shape, dtype=torch.float64) + 1).to(dtype)
    stats = torch.float64 if dtype == torch.float64 else torch.float32
    form = capi.FORMS[i % 3]
    Case(shape[1], train, affine, track, [1e-5, 1e-3][i % 2], [0.1, 0.7][i // 2 % 2], form, stats, [stats, dtype][i % 2]).check(x)


@pytest.mark.parametrize("momentum", [0.0, 1.0, 0.1])
def test_running_statistics_move_by_the_momentum(momentum):
    case = Case(3, momentum=momentum, affine=False)
    x = torch.randn(4, 3, 5)
    *_, mean, var = case.forward(x)
    if momentum == 0:
        assert torch.equal(mean, case.mean) and torch.equal(var, case.var)
    if momentum == 1:
        capi.close(mean, x.mean((0, 2)), torch.float32)
        capi.close(var, x.var((0, 2)), torch.float32)
    capi.close(var, case.torch(x)[1][1], torch.float32)


def test_a_large_mean_costs_no_digits():
    """The variance is that of the differences: the mean of squares less the square of the mean would leave 4 digits here."""
    x = torch.randn(4, 2, 50, dtype=torch.float64)
    case = Case(2, stats=torch.float64, affine=False, track=False)
    capi.close(case.forward(x + 2**20)[0], case.forward(x)[0], torch.float64, factor=100)      # x + 2^20 keeps 32 bits of x


def test_one_value_a_channel():
    with pytest.raises(capi.WeftError, match=r"there is 1 value per channel \(n 1, spatial size 1\), allowed in training: more than 1"):
        Case(3).forward(torch.randn(1, 3, 1))
    Case(3, train=False).check(torch.randn(1, 3, 1, 1))


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 3, 0, 4)], ids=str)
def test_no_elements(shape, train):
    case = Case(3, train)
    x = torch.randn(shape)
    y, *saved, mean, var = case.forward(x)
    assert y.shape == x.shape and torch.equal(mean, case.mean) and torch.equal(var, case.var)
    assert not train or (torch.equal(saved[0], torch.zeros(3)) and torch.allclose(saved[1], torch.full((3,), 1e-5).rsqrt()))
    dx, *gradients = case.backward(x, saved, torch.randn(shape))
    assert dx.shape == x.shape and not any(g.any() for g in gradients)


@pytest.mark.parametrize("train", [True, False])
def test_special_values_go_where_torch_sends_them(train):
    x = torch.randn(4, 6, 5)
    x[0, 0, 0], x[1, 1, 1], x[2, 2, 2], x[0, 3, :2] = NAN, INF, -INF, torch.tensor([INF, NAN])
    x[:, 4] = 3                                          # a channel without variance
    case = Case(6, train)
    want, running, leaves = case.torch(x, torch.float32)
    y, *saved, mean, var = case.forward(x)
    capi.close(y, want.detach(), torch.float32)
    capi.close(mean, running[0], torch.float32)
    capi.close(var, running[1], torch.float32)
    dy = torch.randn_like(x)
    for mine, theirs in zip(case.backward(x, saved, dy), torch.autograd.grad(want, leaves, dy)):
        capi.close(mine, theirs, torch.float32, factor=4 if train else 1)      # torch sums the channel without variance in f32


@pytest.mark.parametrize("train", [True, False])
def test_gradients_accumulate(train):
    case = Case(3, train)
    x, dy = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    saved = case.forward(x)[1:3]
    old = [torch.randn(2, 3, 4), torch.randn(3), torch.randn(3)]
    plain = case.backward(x, saved, dy)
    for got, new, before in zip(case.backward(x, saved, dy, ":acc0.5_-2", [t.clone() for t in old]), plain, old):
        capi.close(got, 0.5 * new - 2 * before, torch.float32)


@pytest.mark.parametrize("train", [True, False])
def test_gradient_is_the_slope_of_the_forward_pass(train):
    case = Case(3, train, stats=torch.float64, params=torch.float64)
    x, v, dy = (torch.randn(2, 3, 4, dtype=torch.float64) for _ in range(3))
    slope = (capi.slope(lambda z: case.forward(z)[0], x, v) * dy).sum()
    assert abs(slope - (case.backward(x, case.forward(x)[1:3], dy)[0] * v).sum()) < 1e-7


def test_beyond_two_to_the_31():
    x, y = capi.far((2, 3, 5), torch.bfloat16), capi.far((2, 3, 5), torch.bfloat16)
    x.copy_(torch.randn(x.shape))
    capi.run(f"batch_norm1d:fwd:bf16:{capi.layouts('strided', src=x, dst=y)}:n2c3w5:train1affine0track0", src=x, dst=y,
             save_mean=torch.empty(3), save_invstd=torch.empty(3))
    capi.close(y, F.batch_norm(x.double(), None, None, training=True), torch.bfloat16)


def test_refusals():
    head = "batch_norm1d:fwd:f32:ncw:n2c3w4:"
    for options, message in [("train2", "train is 2, allowed: 0 or 1"), ("train1affine3", "affine is 3, allowed: 0 or 1"),
                             ("train1track-1", "track is -1, allowed: 0 or 1"), ("train1eps-1", "eps is -1, allowed: 0 or more, finite"),
                             ("train1momentum1e999", "momentum is inf, allowed: a finite number"),
                             ("train0track0", "track is 0 with train 0, allowed there: 1"), ("affine1", "expected 'train' and a number")]:
        with pytest.raises(capi.WeftError, match=message):
            capi.parse(head + options)
    for options, message in [("f32,weights=f32:ncw:n2c3w4:train1affine0", "weights takes no part in pass fwd of batch_norm$"),
                             ("f32,bias=f32:ncw:n2c3w4:train1affine0", "bias takes no part in pass fwd of batch_norm$"),
                             ("f32,mean=f32:ncw:n2c3w4:train1track0", "mean takes no part"),
                             ("f32,save_mean=f32:ncw:n2c3w4:train0", "save_mean takes no part"),
                             ("f16,mean=f16:ncw:n2c3w4:train1", "mean: data type is f16 .* which batch_norm does not take there"),
                             ("f32:ncw:n2c0w4:train1", "channels c is 0, allowed: 1..2")]:
        with pytest.raises(capi.WeftError, match=message):
            capi.parse("batch_norm1d:fwd:" + options)
