"""What one learns: weft.torch7 has the modules of cudnn.torch by their names, arguments in the old order, labels from 1, and modes a module.

    python examples/08_torch7_names.py
"""
import torch

import weft.torch7 as cudnn

torch.manual_seed(0)
net = torch.nn.Sequential(
    cudnn.SpatialConvolution(3, 16, 5, 5, 1, 1, 2, 2),        # width before height: kW, kH, dW, dH, padW, padH
    cudnn.SpatialBatchNormalization(16),
    cudnn.ReLU(True),
    cudnn.SpatialMaxPooling(2, 2).ceil(),
    cudnn.SpatialConvolution(16, 5, 1, 1).noBias(),
    cudnn.SpatialLogSoftMax(),
)
print(net)

# Modes of one module: no workspace limit, and kernels by name for its three passes.
net[0].fastest().setMode(fmode="torch")
net[0].resetMode()

# A criterion over images. Labels count from 1 here, and from 0 everywhere else in weft.
images, labels = torch.randn(4, 3, 9, 9), torch.randint(1, 6, (4, 5, 5))
criterion, optimiser = cudnn.SpatialCrossEntropyCriterion(), torch.optim.SGD(net.parameters(), lr=0.5)
losses = []
for _ in range(20):
    optimiser.zero_grad()
    loss = criterion(net(images), labels)
    loss.backward()                                            # gradients come from autograd
    optimiser.step()
    losses.append(loss.item())
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")

# Recurrent layers: (time, batch, features) unless batchFirst. With rememberStates a call goes on where the last one stopped.
lstm = cudnn.LSTM(8, 16, 2, False, 0, True)
whole = torch.randn(6, 3, 8)
with torch.no_grad():
    together = lstm(whole)
    lstm.resetStates()
    parts = torch.cat([lstm(whole[:2]), lstm(whole[2:])])
print("in parts as in one piece:", torch.allclose(together, parts, atol=1e-6))
