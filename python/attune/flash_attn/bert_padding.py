# SPDX-License-Identifier: Apache-2.0
"""flash_attn.bert_padding: converts padded batches [batch, seq, ...] to tokens [token, ...], and back."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["index_first_axis", "index_put_first_axis", "pad_input", "unpad_input"]


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    """Rows of the first axis, by index."""
    return input.index_select(0, indices)


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """A tensor of first_axis_dim rows with values at `indices` and 0 elsewhere."""
    return values.new_zeros(first_axis_dim, *values.shape[1:]).index_copy(0, indices, values)


def unpad_input(hidden_states: Tensor, attention_mask: Tensor,
                unused_mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """The tokens of hidden_states [batch, seq, ...] selected by attention_mask or unused_mask [batch, seq], their
    indices in [batch * seq], the starts of the sequences [batch + 1], the longest length, and the number of tokens in
    attention_mask per sequence."""
    there = attention_mask.bool() if unused_mask is None else attention_mask.bool() | unused_mask.bool()
    lengths = there.sum(-1, dtype=torch.int32)
    indices = there.flatten().nonzero().flatten()
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    used = lengths if unused_mask is None else attention_mask.bool().sum(-1, dtype=torch.int32)
    longest = int(lengths.max()) if lengths.numel() else 0
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, cu_seqlens, longest, used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """[batch, seqlen, ...] from tokens and their indices, 0 elsewhere."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))
