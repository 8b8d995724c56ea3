"""What a forward of a variant keeps for its backward: shapes and dtypes, None being that of q. docs/nsa.md."""

from __future__ import annotations

import torch
from torch import Tensor

from .._spec import Spec


def saved_shapes(spec: Spec, q: Tensor, k: Tensor, v: Tensor) -> list[tuple[tuple[int, ...], torch.dtype | None]]:
    if not spec.saved:
        return []
    size = dict(zip(spec.layout, q.shape))
    rows = (size["b"], size["s"]) if "b" in size else (1, size["t"])
    heads, groups = size["h"], k.shape[spec.kv_axes.index("h")]
    blocks = int(dict(pair.split("=") for pair in spec.variant.split()[1:])["n"])
    return [((*rows, 3 * heads, v.shape[-1]), None), ((*rows, 3 * heads, 1), torch.float32),
            ((*rows, groups, blocks), torch.int32)]
