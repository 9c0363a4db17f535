"""What one learns: benchmark mode measures the kernels for a shape once; wisdom keeps what was found in a file that many machines may share.

    python examples/07_tune_and_keep_wisdom.py
"""
import torch

import weft
import weft.functional as W
from weft.backends import wisdom

x, w = torch.randn(2, 32, 56, 56), torch.randn(32, 1, 3, 3)


def call():
    W.conv2d(x, w, padding=1, groups=32)
    return weft.backends.kernels()


# Without measuring, the least estimate of time decides.
print("estimated:", call())

# With it, the candidates run on private buffers at the first call of a new shape; PyTorch's own code is one of them.
with weft.backends.flags(benchmark=True, measure_seconds=0.5):
    found = call()
print(f"measured: {found}; entries of wisdom: {wisdom.count()}")

# A file of text: an entry is a machine, a problem and the times. Saving adds to what the file holds.
print(wisdom.save("shapes.wisdom"))

# Another process would begin here. wisdom_only makes a shape that nobody has measured an error.
wisdom.forget()
wisdom.load("shapes.wisdom")
with weft.backends.flags(wisdom_only=True):
    print("the same kernel from the file:", call() == found)
    try:
        W.conv2d(x[:1], w, padding=1, groups=32)
    except RuntimeError as error:
        print(error)

# By hand: this kernel wherever it applies. weft.backends.kernel_names() lists them, and "torch" is PyTorch's own code.
with weft.backends.pin("conv_ref"):
    print("pinned:", call())
