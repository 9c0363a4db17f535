"""What one learns: weft.functional is torch.nn.functional with a faster road under some calls, and one can see which road was taken.

    python examples/02_functions.py
"""
import torch
import torch.nn.functional as F

import weft
import weft.functional as W

torch.manual_seed(0)
x = torch.randn(2, 32, 28, 28, requires_grad=True)
depthwise, dense = torch.randn(32, 1, 3, 3, requires_grad=True), torch.randn(4, 32, 3, 3)

# The same arguments as the twin's, the same gradients.
ours, theirs = W.conv2d(x, depthwise, padding=1, groups=32), F.conv2d(x, depthwise, padding=1, groups=32)
print("depthwise 3x3: kernel", weft.backends.kernels())
gradients = zip(torch.autograd.grad(ours.square().sum(), (x, depthwise)), torch.autograd.grad(theirs.square().sum(), (x, depthwise)))
errors = [(a - b).abs().max() / b.abs().max() for a, b in ((ours, theirs), *gradients)]
print(f"largest difference {max(errors):.1e} of the largest value, result and gradients")

# Where PyTorch's own code is expected to win it runs: weft's operator calls it.
W.conv2d(torch.randn(8, 128, 56, 56).to(memory_format=torch.channels_last), torch.randn(128, 128, 3, 3), stride=2)
print("dense 3x3 of many channels, channels-last, with stride 2: kernel", weft.backends.kernels())

# An activation in the same pass, and a result in memory that is there already.
y = torch.empty(2, 32, 28, 28)
with torch.no_grad():
    W.conv2d(x, depthwise, padding=1, groups=32, act="relu", out=y)
print("relu in the same pass:", torch.equal(y, W.relu(ours)))

# The memory format of the input is that of the result: nothing is copied to another one.
last = x.detach().to(memory_format=torch.channels_last)
print("channels last stays:", W.conv2d(last, depthwise, padding=1, groups=32).is_contiguous(memory_format=torch.channels_last))

# weft's own kernels give the same bits for every number of threads; delegate=False keeps to them.
threads, results = torch.get_num_threads(), []
with weft.backends.flags(delegate=False), torch.no_grad():
    for n in (1, 2):
        torch.set_num_threads(n)
        results.append(W.conv2d(x, dense))
torch.set_num_threads(threads)
print("bits equal with 1 and 2 threads:", torch.equal(*results))
