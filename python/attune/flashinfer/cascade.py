# SPDX-License-Identifier: Apache-2.0
"""flashinfer.cascade: attention over parts of the keys, joined. A state is an output v and its lse s, f32 in base 2;
a state without keys has s = -inf."""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch import Tensor

from ._attention import refuse
from .prefill import BatchPrefillWithPagedKVCacheWrapper

__all__ = ["MultiLevelCascadeAttentionWrapper", "merge_state", "merge_state_in_place", "merge_states"]


def merge_states(v: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """Joins states: v [row, state, head, dim] and s [row, state, head] f32. Returns v [row, head, dim] and s
    [row, head]."""
    if s.dtype != torch.float32 or v.shape[:-1] != s.shape:
        raise refuse(f"s is {s.dtype} {list(s.shape)} beside v {list(v.shape)}; accepted is float32 "
                     f"{list(v.shape[:-1])}")
    most = s.amax(1, keepdim=True)
    weights = torch.exp2(s - most.masked_fill(most.isneginf(), 0.0))
    total = weights.sum(1)
    share = weights / total.masked_fill(total == 0, 1.0).unsqueeze(1)  # a row without keys has weights 0
    merged = (v.float() * share.unsqueeze(-1)).sum(1).to(v.dtype)
    return merged, most.squeeze(1) + torch.log2(total)


def merge_state(v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor) -> tuple[Tensor, Tensor]:
    """Joins two states: v [row, head, dim], s [row, head] f32."""
    if v_a.shape != v_b.shape or v_a.dtype != v_b.dtype or s_a.shape != s_b.shape:
        raise refuse(f"states of {v_a.dtype} {list(v_a.shape)} and {v_b.dtype} {list(v_b.shape)} are not of one shape "
                     "and dtype")
    return merge_states(torch.stack([v_a, v_b], 1), torch.stack([s_a, s_b], 1))


def merge_state_in_place(v: Tensor, s: Tensor, v_other: Tensor, s_other: Tensor, mask: Tensor | None = None) -> None:
    """merge_state() into v and s, in rows where mask [row] is True."""
    joined, log_sum = merge_state(v, s, v_other, s_other)
    if mask is not None:
        joined = torch.where(mask.bool()[:, None, None], joined, v)
        log_sum = torch.where(mask.bool()[:, None], log_sum, s)
    v.copy_(joined)
    s.copy_(log_sum)


class MultiLevelCascadeAttentionWrapper:
    """Attention over keys of several levels, each with its own sequences: a prefix that many requests share is read
    once. plan() takes a list with one entry a level, in the arguments of BatchPrefillWithPagedKVCacheWrapper.plan()."""

    def __init__(self, num_levels: int, float_workspace_buffer: Tensor, kv_layout: str = "NHD",
                 use_cuda_graph: bool = False, qo_indptr_buf_arr: Sequence[Tensor] | None = None,
                 paged_kv_indptr_buf_arr: Sequence[Tensor] | None = None,
                 paged_kv_indices_buf_arr: Sequence[Tensor] | None = None,
                 paged_kv_last_page_len_buf_arr: Sequence[Tensor] | None = None) -> None:
        buffers = {"qo_indptr_buf": qo_indptr_buf_arr, "paged_kv_indptr_buf": paged_kv_indptr_buf_arr,
                   "paged_kv_indices_buf": paged_kv_indices_buf_arr,
                   "paged_kv_last_page_len_buf": paged_kv_last_page_len_buf_arr}
        for given in buffers.values():
            if given is not None and len(given) != num_levels:
                raise refuse(f"there are {num_levels} levels, and {len(given)} buffers are given for them")
        self._levels: list[BatchPrefillWithPagedKVCacheWrapper] = []
        for n in range(num_levels):
            own: dict[str, Any] = {name: given[n] for name, given in buffers.items() if given is not None}
            self._levels.append(BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout, use_cuda_graph,
                                                                    **own))

    @property
    def is_cuda_graph_enabled(self) -> bool:
        """Whether plans keep their memory, for graphs."""
        return self._levels[0].is_cuda_graph_enabled

    def reset_workspace_buffer(self, float_workspace_buffer: Tensor, int_workspace_buffers: Sequence[Tensor]) -> None:
        """For callers of FlashInfer: attune needs no workspace of the caller."""

    def plan(self, qo_indptr_arr: Sequence[Tensor], paged_kv_indptr_arr: Sequence[Tensor],
             paged_kv_indices_arr: Sequence[Tensor], paged_kv_last_page_len: Sequence[Tensor], num_qo_heads: int,
             num_kv_heads: int, head_dim: int, page_size: int, causal: bool = False, **options: Any) -> None:
        """As in BatchPrefillWithPagedKVCacheWrapper, for each level. causal holds in the last one."""
        given = (qo_indptr_arr, paged_kv_indptr_arr, paged_kv_indices_arr, paged_kv_last_page_len)
        if any(len(parts) != len(self._levels) for parts in given):
            raise refuse(f"plans for {[len(parts) for parts in given]} levels are given, and there are "
                         f"{len(self._levels)}")
        for n, level in enumerate(self._levels):
            level.plan(qo_indptr_arr[n], paged_kv_indptr_arr[n], paged_kv_indices_arr[n], paged_kv_last_page_len[n],
                       num_qo_heads, num_kv_heads, head_dim, page_size,
                       causal=causal and n == len(self._levels) - 1, **options)

    begin_forward = plan

    def run(self, q: Tensor, paged_kv_cache: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        """Attention over the keys of all levels."""
        states = [level.run(q, paged_kv_cache, return_lse=True) for level in self._levels]
        return merge_states(torch.stack([v for v, _ in states], 1), torch.stack([s for _, s in states], 1))[0]

    forward = run
