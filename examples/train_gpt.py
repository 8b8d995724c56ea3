# SPDX-License-Identifier: Apache-2.0
"""Trains a tiny GPT on bytes with each attention and draws the loss curves on top of each other.

    PYTHONPATH=build/python python3 examples/train_gpt.py --steps 100 --plot curves.svg

The same weights and the same batches for each, so the curves differ by rounding alone."""

from __future__ import annotations

import argparse
import pathlib
from typing import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import attune.flash_attn
import attune.torch

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]  # [batch, seq, head, dim]


def by_definition(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bshd,bthd->bhst", q, k) * q.shape[-1] ** -0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return torch.einsum("bhst,bthd->bshd", scores.masked_fill(hidden, float("-inf")).softmax(-1), v)


def by_torch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


BACKENDS: dict[str, Attention] = {
    "attune.torch": lambda q, k, v: attune.torch.attend(q, k, v, causal=True),
    "attune.flash_attn": lambda q, k, v: attune.flash_attn.flash_attn_func(q, k, v, causal=True),
    "torch sdpa": by_torch,
    "definition": by_definition,
}


class Block(nn.Module):
    def __init__(self, width: int, heads: int, attention: Attention) -> None:
        super().__init__()
        self.heads, self.attention = heads, attention
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        x = x + self.out(self.attention(q, k, v).flatten(2))
        return x + self.mlp(self.after(x))


class Gpt(nn.Module):
    def __init__(self, attention: Attention, width: int = 64, heads: int = 4, blocks: int = 2,
                 length: int = 64) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads, attention) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def train(attention: Attention, text: Tensor, steps: int, device: str) -> list[float]:
    torch.manual_seed(0)
    model = Gpt(attention).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = []
    for _ in range(steps):
        starts = torch.randint(0, len(text) - 65, (8,))
        batch = torch.stack([text[s:s + 65] for s in starts]).to(device)
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def plot(curves: dict[str, list[float]], path: pathlib.Path) -> None:
    width, height, colors = 640, 360, ("#1f6f8b", "#d1495b", "#66a182", "#8d6a9f")
    top = max(max(losses) for losses in curves.values())
    lines = []
    for n, (name, losses) in enumerate(curves.items()):
        step, high = (width - 60) / max(1, len(losses) - 1), (height - 60) / top
        points = " ".join(f"{40 + x * step:.1f},{height - 30 - y * high:.1f}" for x, y in enumerate(losses))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colors[n % 4]}" stroke-width="{5 - n}"/>')
        lines.append(f'<text x="{width - 150}" y="{30 + 18 * n}" fill="{colors[n % 4]}">{name}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">'
    path.write_text(head + f'<text x="8" y="20">loss, from {top:.2f}</text>' + "".join(lines) + "</svg>\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--text", type=pathlib.Path, default=pathlib.Path(__file__), help="a file to learn")
    parser.add_argument("--plot", type=pathlib.Path, help="an SVG with the curves")
    options = parser.parse_args()
    text = torch.tensor(list(options.text.read_bytes()))
    curves = {name: train(attention, text, options.steps, options.device) for name, attention in BACKENDS.items()}
    wanted = curves["definition"]
    for name, losses in curves.items():
        apart = max(abs(a - b) for a, b in zip(losses, wanted))
        print(f"{name:18} loss {losses[0]:.4f} ... {losses[-1]:.4f}, at most {apart:.1e} from the definition")
    if options.plot:
        plot(curves, options.plot)


if __name__ == "__main__":
    main()
