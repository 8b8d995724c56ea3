"""flash_attn.bert_padding: padded batches [batch, seq, ...] as the tokens that are there [token, ...], and back."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["index_first_axis", "index_put_first_axis", "pad_input", "unpad_input"]


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    """Rows of the first axis."""
    return input.index_select(0, indices)


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """values as the rows `indices` of as many as first_axis_dim; the others are 0."""
    return values.new_zeros(first_axis_dim, *values.shape[1:]).index_copy(0, indices, values)


def unpad_input(hidden_states: Tensor, attention_mask: Tensor,
                unused_mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """The tokens of hidden_states [batch, seq, ...] that attention_mask or unused_mask [batch, seq] has, their places
    in [batch * seq], where sequences begin [batch + 1], the longest of them, and how many of each attention_mask
    has."""
    there = attention_mask.bool() if unused_mask is None else attention_mask.bool() | unused_mask.bool()
    lengths = there.sum(-1, dtype=torch.int32)
    indices = there.flatten().nonzero().flatten()
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    used = lengths if unused_mask is None else attention_mask.bool().sum(-1, dtype=torch.int32)
    longest = int(lengths.max()) if lengths.numel() else 0
    return index_first_axis(hidden_states.flatten(0, 1), indices), indices, cu_seqlens, longest, used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """[batch, seqlen, ...] of tokens and their places, 0 where there is none."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))
