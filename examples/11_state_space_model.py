"""What one learns: a tiny state-space language model on weft.nn.CausalConv1d, trained on whole sequences and decoded token by token.

    python examples/11_state_space_model.py
"""
import torch
from torch import Tensor, nn

import weft

TEXT = "the cat sat on the mat. the dog sat on the log. " * 40
LETTERS = sorted(set(TEXT))


class Block(nn.Module):
    """Short convolution, then a state of one number for each channel that decays at a rate the token chooses."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.into, self.rate, self.out = nn.Linear(dim, 2 * dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.conv = weft.nn.CausalConv1d(dim, 4, activation="silu")

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, dim): the projection leaves the channels side by side, and the convolution takes them so."""
        v, gate = self.into(x).chunk(2, -1)
        v = self.conv(v.transpose(1, 2)).transpose(1, 2)
        keep, state, states = torch.sigmoid(self.rate(v)), torch.zeros_like(v[:, 0]), []
        for t in range(v.shape[1]):
            state = keep[:, t] * state + (1 - keep[:, t]) * v[:, t]
            states.append(state)
        return x + self.out(torch.stack(states, 1) * nn.functional.silu(gate))

    def empty(self, batch: int) -> list[Tensor]:
        return [self.conv.state(batch), torch.zeros(batch, self.conv.dim)]

    def step(self, x: Tensor, held: list[Tensor]) -> Tensor:
        """The same for one token (batch, dim); what is held moves on."""
        v, gate = self.into(x).chunk(2, -1)
        v = self.conv.step(v, held[0])
        keep = torch.sigmoid(self.rate(v))
        held[1] = keep * held[1] + (1 - keep) * v
        return x + self.out(held[1] * nn.functional.silu(gate))


class Model(nn.Module):
    def __init__(self, dim: int = 48, layers: int = 2) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(len(LETTERS), dim), nn.Linear(dim, len(LETTERS))
        self.blocks = nn.ModuleList(Block(dim) for _ in range(layers))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def step(self, token: Tensor, held: list[list[Tensor]]) -> Tensor:
        x = self.embed(token)
        for block, state in zip(self.blocks, held):
            x = block.step(x, state)
        return self.head(x)


torch.manual_seed(0)
tokens = torch.tensor([LETTERS.index(letter) for letter in TEXT])
model = Model()
optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
for step in range(61):
    starts = torch.randint(len(tokens) - 33, (8,))
    batch = torch.stack([tokens[s:s + 33] for s in starts])
    loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    if step % 20 == 0:
        print(f"step {step:2}: loss {loss:.3f}")

# Token by token: no gradient, and nothing is computed twice.
with torch.no_grad():
    prompt = tokens[:24]
    held = [block.empty(1) for block in model.blocks]
    steps = torch.stack([model.step(token[None], held)[0] for token in prompt])
    print(f"token by token and all at once differ by at most {(steps - model(prompt[None])[0]).abs().max():.1e}")
    token, said = steps[-1].argmax(), []
    for _ in range(32):
        said.append(LETTERS[token])
        token = model.step(token[None], held)[0].argmax()
print(f"{TEXT[:24]!r} goes on with {''.join(said)!r}")
