"""What one learns: a partial convolution reads only what a mask lets through, rescales by how much that was, and hands on a smaller hole.

    python examples/05_partial_convolution.py
"""
import torch

import weft

# An image of ones with a hole in which there is garbage. A mean filter should give 1 everywhere.
image, mask = torch.ones(1, 1, 21, 21), torch.ones(1, 21, 21, dtype=torch.bool)
image[..., 6:15, 6:15], mask[..., 6:15, 6:15] = float("nan"), False
mean = torch.full((1, 1, 3, 3), 1 / 9)

plain = torch.nn.functional.conv2d(image, mean, padding=1)
print("outputs inside the hole with a plain convolution:", "wrong" if plain.isnan().any() else "fine")

# torch_pconv's module: masks are (N, H, W). A bool mask selects, so that even NaN stays out.
layer = weft.nn.PConv2d(1, 1, 3, padding=1).set_weight(mean)
with torch.no_grad():
    y, smaller = layer(image, mask)
print(f"with a partial convolution: {y[smaller[:, None].bool()].mean():.3f} wherever the window saw a pixel, also at the border")

# The hole closes by one pixel from each side with every layer.
holes, x, m = [int((~mask).sum())], image, mask
with torch.no_grad():
    while holes[-1]:
        x, m = layer(x, m)
        holes.append(int((m == 0).sum()))
print("holes left after each layer:", *holes)

# NVIDIA's module. Without a mask only the padding counts as a hole: "partial convolution based padding".
padded = weft.nn.PartialConv2d(1, 1, 3, padding=1, bias=False)
padded.load_state_dict({"weight": mean})
with torch.no_grad():
    flat = torch.ones(1, 1, 5, 5)
    corners = [y[0, 0, 0, 0].item() for y in (padded(flat), torch.nn.functional.conv2d(flat, mean, padding=1))]
print("the corner of an image of ones: {:.3f} by partial padding, {:.3f} by zeros".format(*corners))

# Gradients flow to the image and the weights; a mask has none. What is kept for them is the image, the weights and the mask.
x = torch.rand(2, 1, 8, 8, requires_grad=True)
layer(x, torch.rand(2, 8, 8) > 0.5)[0].sum().backward()
print("gradients:", x.grad.shape, layer.get_weight().grad.shape)
