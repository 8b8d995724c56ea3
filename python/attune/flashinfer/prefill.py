# SPDX-License-Identifier: Apache-2.0
"""flashinfer.prefill: attention of many queries, over pages, over packed keys, and of one request."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from ._attention import Attention, Scale, angles, by_rows, check_dtypes, check_layout, check_options, refuse
from ._batch import Masks, Shape, Wrapper, alibi, attention_of, dtypes_of
from ._pages import given_pages, kept_width, lengths_of, mask_bias, read_pages, starts_of
from .page import pages_of

__all__ = ["BatchPrefillWithPagedKVCacheWrapper", "BatchPrefillWithRaggedKVCacheWrapper",
           "single_prefill_with_kv_cache"]

Dtype = Any  # a torch.dtype or its name


class BatchPrefillWithPagedKVCacheWrapper(Wrapper):
    """Attention of q [row, head, dim] over pages of keys.

        wrapper = attune.flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        wrapper.plan(qo_indptr, kv_indptr, kv_indices, kv_last_page_len, 32, 8, 128, 16, causal=True)
        out = wrapper.run(q, (k_pages, v_pages))

    The workspace names the device only. With use_cuda_graph, plans keep their memory, so a captured run() sees the
    lengths and pages of the latest plan(); the batch cannot change."""

    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False,
                 qo_indptr_buf: Tensor | None = None, paged_kv_indptr_buf: Tensor | None = None,
                 paged_kv_indices_buf: Tensor | None = None, paged_kv_last_page_len_buf: Tensor | None = None,
                 custom_mask_buf: Tensor | None = None, mask_indptr_buf: Tensor | None = None, backend: str = "auto",
                 jit_args: Any = None, jit_kwargs: Any = None, variant_owns_mask: bool = False) -> None:
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, backend,
                         jit_args or jit_kwargs or variant_owns_mask)
        self._starts, self._indices = qo_indptr_buf, paged_kv_indices_buf
        self._most_q = 0

    def plan(self, qo_indptr: Tensor, paged_kv_indptr: Tensor, paged_kv_indices: Tensor, paged_kv_last_page_len: Tensor,
             num_qo_heads: int, num_kv_heads: int, head_dim_qk: int, page_size: int, head_dim_vo: int | None = None,
             custom_mask: Tensor | None = None, packed_custom_mask: Tensor | None = None, causal: bool = False,
             pos_encoding_mode: str = "NONE", use_fp16_qk_reduction: bool = False, sm_scale: float | None = None,
             window_left: int = -1, logits_soft_cap: float | None = None, rope_scale: float | None = None,
             rope_theta: float | None = None, q_data_type: Dtype = "float16", kv_data_type: Dtype = None,
             o_data_type: Dtype = None, non_blocking: bool = True, prefix_len_ptr: Tensor | None = None,
             token_pos_in_items_ptr: Tensor | None = None, token_pos_in_items_len: int = 0,
             max_item_len_ptr: Tensor | None = None, seq_lens: Tensor | None = None, seq_lens_q: Tensor | None = None,
             block_tables: Tensor | None = None, max_token_per_sequence: int | None = None,
             max_sequence_kv: int | None = None, fixed_split_size: int | None = None,
             disable_split_kv: bool = False, uniform_q_len: int | None = None) -> None:
        """Queries of request n are rows qo_indptr[n] ... of q, its keys the pages paged_kv_indices[paged_kv_indptr[n]]
        ..., the last one with paged_kv_last_page_len[n] rows; or, with block_tables and seq_lens, pages of a table
        [batch, page], which is not copied. fixed_split_size and disable_split_kv ask for results that do not depend on
        the batch, and get reproducible="batch". Waits for qo_indptr and lengths on a GPU."""
        check_options({"prefix_len_ptr": prefix_len_ptr, "token_pos_in_items_ptr": token_pos_in_items_ptr,
                       "max_item_len_ptr": max_item_len_ptr})
        shape = Shape(num_qo_heads, num_kv_heads, head_dim_qk, causal, pos_encoding_mode, window_left, logits_soft_cap,
                      sm_scale, rope_scale, rope_theta, fixed_split_size is not None or disable_split_kv)
        len_q = lengths_of(starts_of("qo_indptr", qo_indptr))
        if block_tables is not None and seq_lens is not None:
            pages = given_pages(block_tables, seq_lens, page_size, self.device)
        else:
            width = 0
            if self._graph:
                kept = self._kept.get("page table")
                width = kept_width(self._indices, len(len_q)) if kept is None else kept.shape[1]
            pages = read_pages(paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size, self.device, width)
        if len(pages.lengths) != len(len_q):
            raise refuse(f"qo_indptr has {len(len_q)} requests, and the pages have {len(pages.lengths)}")
        pages.table, pages.used = self._keep("page table", pages.table), self._keep("lengths", pages.used)
        cu_q = self._keep("qo_indptr", qo_indptr.to(self.device, torch.int32), self._starts)
        self._most_q = self._most_q or max(sum(len_q), 1)
        if self._graph and sum(len_q) > self._most_q:
            raise refuse(f"there are {sum(len_q)} queries, and the graph's first plan() had {self._most_q}")
        self._plan = attention_of(
            shape, Masks(custom_mask, packed_custom_mask), dtypes_of(q_data_type, kv_data_type, o_data_type), len_q,
            pages.lengths, self.device, pages=pages, page_size=page_size, cu_q=cu_q,
            kept=(self._most_q, pages.table.shape[1] * page_size) if self._graph else None)

    begin_forward = plan

    def run(self, q: Tensor, paged_kv_cache: Tensor | tuple[Tensor, Tensor], *args: Any, q_scale: Scale = None,
            k_scale: Scale = None, v_scale: Scale = None, out: Tensor | None = None, lse: Tensor | None = None,
            return_lse: bool = False, lse_base: str = "log2", lse_layout: str = "NH",
            enable_pdl: bool | None = None, window_left: int | None = None, sinks: Tensor | None = None,
            kv_cache_sf: Any = None, skip_softmax_threshold_scale_factor: float | None = None,
            use_fp16_softmax: bool | None = None, uses_spcompress: bool | None = None) -> Any:
        """out [row, head, dim], or (out, lse) with return_lse: lse is [row, head], f32, in base 2, with the sinks.
        lse_base="ln": in base e; lse_layout="HN": [head, row]. The cache is a pair of pages, or one tensor
        [page, 2, ...]. It is read in place, except by ROPE_LLAMA and eight-bit keys, which copy the keys of the batch.
        """
        check_options({"args of a custom kernel": args, "kv_cache_sf": kv_cache_sf,
                       "skip_softmax_threshold_scale_factor": skip_softmax_threshold_scale_factor,
                       "uses_spcompress": uses_spcompress})
        k, v = pages_of(paged_kv_cache, self._kv_layout)
        return self._planned().run(q, k, v, out=out, lse=lse, return_lse=return_lse, sinks=sinks,
                                   window_left=window_left, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale,
                                   lse_base=lse_base, lse_layout=lse_layout)

    run_return_lse = functools.partialmethod(run, return_lse=True)


class BatchPrefillWithRaggedKVCacheWrapper(Wrapper):
    """Attention of q [row, head, dim] over keys [row, head, dim] of all requests, one behind another."""

    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False,
                 qo_indptr_buf: Tensor | None = None, kv_indptr_buf: Tensor | None = None,
                 custom_mask_buf: Tensor | None = None, mask_indptr_buf: Tensor | None = None, backend: str = "auto",
                 jit_args: Any = None, jit_kwargs: Any = None, variant_owns_mask: bool = False) -> None:
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, backend,
                         jit_args or jit_kwargs or variant_owns_mask)
        self._starts, self._starts_k = qo_indptr_buf, kv_indptr_buf
        self._most = (0, 0)

    def plan(self, qo_indptr: Tensor, kv_indptr: Tensor, num_qo_heads: int, num_kv_heads: int, head_dim_qk: int,
             head_dim_vo: int | None = None, custom_mask: Tensor | None = None,
             packed_custom_mask: Tensor | None = None, causal: bool = False, pos_encoding_mode: str = "NONE",
             use_fp16_qk_reduction: bool = False, window_left: int = -1, logits_soft_cap: float | None = None,
             sm_scale: float | None = None, rope_scale: float | None = None, rope_theta: float | None = None,
             q_data_type: Dtype = "float16", kv_data_type: Dtype = None, o_data_type: Dtype = None,
             non_blocking: bool = True, prefix_len_ptr: Tensor | None = None,
             token_pos_in_items_ptr: Tensor | None = None, token_pos_in_items_len: int = 0,
             max_item_len_ptr: Tensor | None = None, fixed_split_size: int | None = None,
             disable_split_kv: bool = False, seq_lens: Tensor | None = None, seq_lens_q: Tensor | None = None,
             max_token_per_sequence: int | None = None, max_sequence_kv: int | None = None,
             v_indptr: Tensor | None = None, o_indptr: Tensor | None = None,
             uniform_q_len: int | None = None) -> None:
        """As in BatchPrefillWithPagedKVCacheWrapper, with keys of request n in rows kv_indptr[n] ... of k and v."""
        check_options({"prefix_len_ptr": prefix_len_ptr, "token_pos_in_items_ptr": token_pos_in_items_ptr,
                       "max_item_len_ptr": max_item_len_ptr, "v_indptr": v_indptr, "o_indptr": o_indptr})
        shape = Shape(num_qo_heads, num_kv_heads, head_dim_qk, causal, pos_encoding_mode, window_left, logits_soft_cap,
                      sm_scale, rope_scale, rope_theta, fixed_split_size is not None or disable_split_kv)
        len_q, len_k = lengths_of(starts_of("qo_indptr", qo_indptr)), lengths_of(starts_of("kv_indptr", kv_indptr))
        if len(len_k) != len(len_q):
            raise refuse(f"qo_indptr has {len(len_q)} requests, and kv_indptr {len(len_k)}")
        cu_q = self._keep("qo_indptr", qo_indptr.to(self.device, torch.int32), self._starts)
        cu_k = self._keep("kv_indptr", kv_indptr.to(self.device, torch.int32), self._starts_k)
        if not self._most[0]:
            self._most = max(sum(len_q), 1), max(sum(len_k), 1)
        if self._graph and (sum(len_q) > self._most[0] or sum(len_k) > self._most[1]):
            raise refuse(f"there are {sum(len_q)} queries and {sum(len_k)} keys, and the graph's first plan() had "
                         f"{self._most[0]} and {self._most[1]}")
        self._plan = attention_of(shape, Masks(custom_mask, packed_custom_mask),
                                  dtypes_of(q_data_type, kv_data_type, o_data_type), len_q, len_k, self.device,
                                  cu_q=cu_q, cu_k=cu_k, kept=self._most if self._graph else None)

    begin_forward = plan

    def run(self, q: Tensor, k: Tensor, v: Tensor, *args: Any, q_scale: Scale = None, k_scale: Scale = None,
            v_scale: Scale = None, o_scale: float | None = None, out: Tensor | None = None, lse: Tensor | None = None,
            return_lse: bool = False, lse_base: str = "log2", lse_layout: str = "NH", enable_pdl: bool | None = None,
            kv_cache_sf: Any = None) -> Any:
        """out [row, head, dim], or (out, lse) with return_lse: lse is [row, head], f32, in base 2, or as lse_base
        and lse_layout say. kv_layout HND: k and v are [head, row, dim]."""
        check_options({"args of a custom kernel": args, "kv_cache_sf": kv_cache_sf,
                       "o_scale": None if o_scale == 1.0 else o_scale})
        return self._planned().run(q, by_rows(self._kv_layout, k), by_rows(self._kv_layout, v), out=out, lse=lse,
                                   return_lse=return_lse, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale,
                                   lse_base=lse_base, lse_layout=lse_layout)

    run_return_lse = functools.partialmethod(run, return_lse=True)


def single_prefill_with_kv_cache(
        q: Tensor, k: Tensor, v: Tensor, scale_q: Scale = None, scale_k: Scale = None, scale_v: Scale = None,
        o_dtype: torch.dtype | None = None, custom_mask: Tensor | None = None,
        packed_custom_mask: Tensor | None = None, causal: bool = False, kv_layout: str = "NHD",
        pos_encoding_mode: str = "NONE", use_fp16_qk_reduction: bool = False, sm_scale: float | None = None,
        window_left: int = -1, logits_soft_cap: float | None = None, rope_scale: float | None = None,
        rope_theta: float | None = None, backend: str = "auto", return_lse: bool = False, kv_cache_sf: Any = None,
        k_scale: Scale = None, v_scale: Scale = None) -> Any:
    """Attention of one request: q [row, head, dim], k and v [row, head, dim], or [head, row, dim] with kv_layout HND.
    Returns out, or (out, lse) with return_lse: lse is [row, head], f32, in base 2."""
    check_options({"kv_cache_sf": kv_cache_sf}, backend)
    k, v = by_rows(check_layout(kv_layout), k), by_rows(kv_layout, v)
    if q.dim() != 3 or k.dim() != 3:
        raise refuse(f"q is {list(q.shape)} and k {list(k.shape)}; accepted are [row, head, dim]")
    check_dtypes(q.dtype, k.dtype, o_dtype or q.dtype)
    shape = Shape(q.shape[1], k.shape[1], q.shape[2], causal, pos_encoding_mode, window_left, logits_soft_cap, sm_scale,
                  rope_scale, rope_theta)
    len_q, len_k = q.shape[0], k.shape[0]
    tensors: dict[str, Tensor] = {}
    masked = custom_mask is not None or packed_custom_mask is not None
    if masked:
        tensors["bias"] = mask_bias(custom_mask, packed_custom_mask, [len_q], [len_k], q.dtype, q.device)
    causal = causal and not masked
    shift = None
    if pos_encoding_mode == "ALIBI":
        shift = alibi(shape, [len_q], [len_k], q.device, tensors, causal)
    turn_q = turn_k = None
    if pos_encoding_mode == "ROPE_LLAMA":
        rows = torch.arange(max(len_q, len_k), device=q.device)
        turn_q = angles(rows[:len_q] + (len_k - len_q), shape.dim, rope_scale, rope_theta)
        turn_k = angles(rows[:len_k], shape.dim, rope_scale, rope_theta)
    plan = Attention("bshd", causal, window_left, float(logits_soft_cap or 0.0),
                     shape.dim ** -0.5 if sm_scale is None else float(sm_scale), (0, 0), tensors, turn_q=turn_q,
                      turn_k=turn_k, lse_shift=shift)
    return plan.run(q, k, v, return_lse=return_lse, q_scale=scale_q, k_scale=_one(scale_k, k_scale, "k"),
                    v_scale=_one(scale_v, v_scale, "v"))


def _one(a: Scale, b: Scale, of: str) -> Scale:
    if a is not None and b is not None:
        raise refuse(f"scale_{of} and {of}_scale are both given, and one of them is accepted")
    return b if a is None else a
