"""Training on made-up data, and the question whether two models train alike up to rounding."""
from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F


class Batch(NamedTuple):
    """Arguments of forward, and what the output should be: labels (cross entropy) or a tensor of its shape (mean absolute error)."""

    inputs: tuple[torch.Tensor, ...]
    target: torch.Tensor

    def to(self, device: torch.device, dtype: torch.dtype) -> Batch:
        target = self.target if self.target.dtype == torch.int64 else self.target.to(dtype)
        return Batch(tuple(x.to(device, dtype) for x in self.inputs), target.to(device))

    def loss(self, output: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, self.target) if self.target.dtype == torch.int64 else F.l1_loss(output, self.target)


def made_up(shape: Sequence[int], classes: int | None, seed: int, count: int = 4) -> list[Batch]:
    """`count` batches, the same for the same seed: a random pattern per class under noise; with classes=None noisy images with holes, to be filled."""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.randn(classes or 1, *shape[1:], generator=generator)
    batches = []
    for _ in range(count):
        labels = torch.randint(len(patterns), (shape[0],), generator=generator)
        x = patterns[labels] + 0.3 * torch.randn(*shape, generator=generator)
        if classes is None:
            mask = (torch.rand(shape[0], 1, *shape[2:], generator=generator) > 0.3).to(x.dtype)
            batches.append(Batch((x * mask, mask), x))
        else:
            batches.append(Batch((x,), labels))
    return batches


def train(model: nn.Module, steps: int, seed: int, batches: Sequence[Batch], lr: float = 0.003, nudge: float = 0.0, nudge_seed: int = 0) -> list[float]:
    """Trains `model` in place by SGD with momentum, going round the batches; the loss of each step. The seed is that of dropout.

    `nudge` multiplies every parameter by 1 + nudge * N(0, 1) before every step, from a generator of its own: dropout stays the same.
    """
    torch.manual_seed(seed)
    model.train()
    first = next(model.parameters())
    batches = [batch.to(first.device, first.dtype) for batch in batches]
    optimiser = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    generator = torch.Generator(first.device).manual_seed(nudge_seed)
    losses = []
    for step in range(steps):
        if nudge:
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(1 + nudge * torch.randn(p.shape, generator=generator, device=p.device, dtype=p.dtype))
        batch = batches[step % len(batches)]
        optimiser.zero_grad()
        loss = batch.loss(model(*batch.inputs))
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def assert_parity(reference: nn.Module, other: nn.Module, steps: int, seed: int, batches: Sequence[Batch], lr: float = 0.003) -> float:
    """Fails where `other` trains differently from `reference` by more than rounding; neither is changed. The largest distance over its bound, at most 1.

    How fast rounding grows from step to step is a property of the model, so it is measured: three runs of the reference with parameters nudged by 8 units
    of rounding before every step. `other` may at any step be 4 times as far from the reference as any of them was so far. The nudge is larger than what a
    kernel's order of summation does because a ReLU or a maximum that flips moves the loss by a jump: a nudged run should meet such a jump first.
    Models in float64 give the sharper verdict: no flips, and the small ones of examples/models stay within 1e-11 over 40 steps.
    """
    eps = torch.finfo(next(reference.parameters()).dtype).eps
    expected = train(copy.deepcopy(reference), steps, seed, batches, lr)
    nudged = [train(copy.deepcopy(reference), steps, seed, batches, lr, 8 * eps, run) for run in range(3)]
    noise, worst = 0.0, 0.0
    for step, (want, got, *others) in enumerate(zip(expected, train(copy.deepcopy(other), steps, seed, batches, lr), *nudged)):
        noise = max(noise, *(abs(loss - want) for loss in others))
        bound = 4 * max(noise, eps * abs(want))
        if not abs(got - want) <= bound:
            raise AssertionError(f"step {step}: loss {got:.9g}, the reference {want:.9g}: {abs(got - want):.3g} apart, allowed is {bound:.3g}")
        worst = max(worst, abs(got - want) / bound)
    return worst
