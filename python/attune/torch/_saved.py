"""What a forward of a variant keeps for its backward: shapes and dtypes, None being that of q. docs/nsa.md has those of
native sparse attention, docs/block_sparse.md those of content-adaptive blocks."""

from __future__ import annotations

import torch
from torch import Tensor

from .._spec import Spec

Shapes = list[tuple[tuple[int, ...], "torch.dtype | None"]]


def saved_shapes(spec: Spec, q: Tensor, k: Tensor, v: Tensor) -> Shapes:
    if not spec.saved:
        return []
    word, *pairs = spec.variant.split()
    parameters = dict(pair.split("=") for pair in pairs)
    size = dict(zip(spec.layout, q.shape))
    if word == "adaptive":
        return _adaptive(spec, parameters, size, k.shape[spec.kv_axes.index("s")])
    rows = (size["b"], size["s"]) if "b" in size else (1, size["t"])
    heads, groups = size["h"], k.shape[spec.kv_axes.index("h")]
    return [((*rows, 3 * heads, v.shape[-1]), None), ((*rows, 3 * heads, 1), torch.float32),
            ((*rows, groups, int(parameters["n"])), torch.int32)]


def _adaptive(spec: Spec, parameters: dict[str, str], size: dict[str, int], len_k: int) -> Shapes:
    block, density = int(parameters.get("block", 64)), round(float(parameters.get("density", 0.1)) * 1e6)
    rows, columns = -(-size["s"] // block), -(-len_k // block)

    def kept(shown: int) -> int:
        return max(1, shown * density // 10**6) if shown else 0

    falls = spec.causal and spec.window is None and spec.align == "bottom_right"
    entries = sum(kept(min(columns, max(0, columns - n + 1))) for n in range(rows)) if falls else rows * kept(columns)
    bound = max(1, entries * size["b"] * size["h"])
    return [((size["b"], 1, size["h"], rows + 1), torch.int32), ((1, 1, 1, bound), torch.int32),
            ((1, 1, 1, bound), torch.float32)]
