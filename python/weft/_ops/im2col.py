"""Columns and images: derivatives and batching of weft::im2col and col2im, each the gradient of the other."""
from __future__ import annotations



from .._rules import Rule, call


# ---------------------------------------------------------------------------------------------- derivatives: both operators are linear

def _save_im2col(ctx, inputs, output):
    ctx.size, ctx.settings = inputs[0].shape[-len(inputs[1]):], inputs[1:]
    return ()


def _save_col2im(ctx, inputs, output):
    ctx.size, ctx.settings = inputs[1], inputs[2:]
    return ()


def _gradient_of_im2col(ctx, grad):
    return (call(col2im, grad, ctx.size, *ctx.settings),)


def _gradient_of_col2im(ctx, grad):
    return (call(im2col, grad, *ctx.settings),)


def _tangent_of_im2col(ctx, dx):
    return call(im2col, dx, *ctx.settings)


def _tangent_of_col2im(ctx, dx):
    return call(col2im, dx, ctx.size, *ctx.settings)


# ---------------------------------------------------------------------------------------------- batching

def _batch(name):
    """A larger batch; of tensors without one, simply a batch."""
    def batch(info, in_dims, input, *settings):
        x, flat, rank = input.movedim(in_dims[0], 0), settings[-1], len(settings[-2])
        unbatched = rank + 1 if name == "im2col" else 2 if flat else 2 * rank + 1
        if x.dim() == unbatched + 1:
            return call(globals()[name], x, *settings), 0
        return call(globals()[name], x.flatten(0, 1), *settings).unflatten(0, x.shape[:2]), 0
    return batch


im2col = Rule("im2col", 1, _save_im2col, _gradient_of_im2col, _tangent_of_im2col, _batch("im2col"))
col2im = Rule("col2im", 1, _save_col2im, _gradient_of_col2im, _tangent_of_col2im, _batch("col2im"))
