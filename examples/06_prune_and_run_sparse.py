"""What one learns: prune a network, check the sparse convolutions against dense ones, let each layer keep to the faster way, and train on.

    python examples/06_prune_and_run_sparse.py
"""
import torch

import weft
from models import MODELS
from weft.sparse import Sparse_modes

torch.manual_seed(0)
net = MODELS["lenet5"].build(num_classes=10)
x = torch.randn(4, 1, 32, 32)

# 90% of the convolutions' weights to 0, the smallest first, over all layers together.
weft.prune.magnitude(net, 0.9)
print(f"of the weights are 0: {100 * weft.prune.sparsity(net):.1f}%")

# The same parameters in modules that skip the zeros, also where few of a layer's weights are 0: the calibration below decides.
net = weft.sparse.from_dense(net, all=True)
print(next(m for m in net.modules() if isinstance(m, weft.nn.SparseConv2d)))

# Test: each layer computes both ways, compares, and says so.
weft.sparse.set_mode(net, Sparse_modes.Test)
net(x)

# Calibration: each layer times both ways on what it sees here and keeps to the faster one. Small layers are often faster densely.
weft.sparse.set_mode(net.eval(), Sparse_modes.Calibration)
with torch.no_grad():
    net(x)
print(weft.sparse.table(net))

# Training goes on with the weights that are left: gradients of the others are not computed, and they stay 0.
weft.sparse.set_mode(net.train(), Sparse_modes.Training)
pruned = [m.weight == 0 for m in net.modules() if isinstance(m, weft.nn.SparseConv2d)]
optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
for _ in range(5):
    optimiser.zero_grad()
    weft.functional.cross_entropy(net(x), torch.arange(4)).backward()
    optimiser.step()
convolutions = [m for m in net.modules() if isinstance(m, weft.nn.SparseConv2d)]
print("pruned weights that training brought back:", sum(int((m.weight[p] != 0).sum()) for m, p in zip(convolutions, pruned)))

# Dense modules again, for whoever wants the file.
print(type(next(m for m in weft.sparse.to_dense(net).modules() if isinstance(m, torch.nn.Conv2d))))
