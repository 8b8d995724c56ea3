# SPDX-License-Identifier: Apache-2.0
"""flash_attn.layers.rotary: rotary embeddings outside attention, with PyTorch operators."""

from __future__ import annotations

import torch
from torch import Tensor

from .._cache import rotary_rows, rotate

__all__ = ["apply_rotary_emb"]


def apply_rotary_emb(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, inplace: bool = False,
                     seqlen_offsets: int | Tensor = 0, cu_seqlens: Tensor | None = None,
                     max_seqlen: int | None = None) -> Tensor:
    """Rotates x [batch, seq, heads, dim], or packed [token, heads, dim] with cu_seqlens, by the tables [position,
    half]. The first row of a sequence is at position seqlen_offsets, one for all or [batch]."""
    batch = len(x) if cu_seqlens is None else len(cu_seqlens) - 1
    base = torch.as_tensor(seqlen_offsets, device=x.device).expand(batch)
    rotated = rotate(x, cos, sin, rotary_rows(x, cu_seqlens, base, True), interleaved)
    return x.copy_(rotated) if inplace else rotated
