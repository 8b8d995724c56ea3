# SPDX-License-Identifier: Apache-2.0
"""flashinfer.decode: attention of one or a few queries of every request, the last ones of its keys."""

from __future__ import annotations

import functools
from typing import Any

from torch import Tensor

from ._attention import Scale, check_options, refuse
from ._batch import Masks, Shape, Wrapper, attention_of, dtypes_of
from ._pages import given_pages, kept_width, read_pages
from .page import pages_of
from .prefill import Dtype, single_prefill_with_kv_cache

__all__ = ["BatchDecodeWithPagedKVCacheWrapper", "CUDAGraphBatchDecodeWithPagedKVCacheWrapper", "fast_decode_plan",
           "single_decode_with_kv_cache"]


class BatchDecodeWithPagedKVCacheWrapper(Wrapper):
    """Attention of q [batch, head, dim], one query of every request, over pages of keys.

        wrapper = attune.flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD")
        wrapper.plan(kv_indptr, kv_indices, kv_last_page_len, 32, 8, 128, 16)
        out = wrapper.run(q, (k_pages, v_pages))

    The workspace names the device only. With use_cuda_graph, plans keep their memory, so a captured run() sees the
    lengths and pages of the latest plan(); the batch cannot change."""

    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False,
                 use_tensor_cores: bool = False, paged_kv_indptr_buffer: Tensor | None = None,
                 paged_kv_indices_buffer: Tensor | None = None, paged_kv_last_page_len_buffer: Tensor | None = None,
                 backend: str = "auto", jit_args: Any = None) -> None:
        super().__init__(float_workspace_buffer, kv_layout, use_cuda_graph, backend, jit_args)
        self._indices, self._tensor_cores = paged_kv_indices_buffer, use_tensor_cores
        self._rows_q = 1

    @property
    def use_tensor_cores(self) -> bool:
        """What the caller asked for. The planner decides."""
        return self._tensor_cores

    def plan(self, indptr: Tensor, indices: Tensor, last_page_len: Tensor, num_qo_heads: int, num_kv_heads: int,
             head_dim: int, page_size: int, pos_encoding_mode: str = "NONE", window_left: int = -1,
             logits_soft_cap: float | None = None, q_data_type: Dtype = None, kv_data_type: Dtype = None,
             o_data_type: Dtype = None, data_type: Dtype = None, sm_scale: float | None = None,
             rope_scale: float | None = None, rope_theta: float | None = None, non_blocking: bool = True,
             block_tables: Tensor | None = None, seq_lens: Tensor | None = None, fixed_split_size: int | None = None,
             disable_split_kv: bool = False, q_len_per_req: int = 1, *, window_right: int = 0,
             is_causal: bool | None = None) -> None:
        """Keys of request n are the pages indices[indptr[n]] ..., the last one with last_page_len[n] rows; or, with
        block_tables and seq_lens, pages of a table [batch, page], which is not copied. With q_len_per_req above 1, q
        has so many rows a request, and each sees the keys up to its own. data_type is that of keys, and of q where
        q_data_type is None. fixed_split_size and disable_split_kv get reproducible="batch". Waits for lengths on a
        GPU."""
        if window_right != 0:
            raise refuse(f"window_right {window_right} is not served; accepted is 0")
        if q_len_per_req < 1:
            raise refuse(f"q_len_per_req {q_len_per_req} is not a number of 1 and more")
        if is_causal is not None and is_causal != (q_len_per_req > 1):
            raise refuse(f"is_causal {is_causal} with q_len_per_req {q_len_per_req} is not served; accepted is None")
        shape = Shape(num_qo_heads, num_kv_heads, head_dim, True, pos_encoding_mode, window_left, logits_soft_cap,
                      sm_scale, rope_scale, rope_theta, fixed_split_size is not None or disable_split_kv)
        dtypes = dtypes_of(data_type if q_data_type is None else q_data_type,
                           data_type if kv_data_type is None else kv_data_type, o_data_type)
        if block_tables is not None and seq_lens is not None:
            pages = given_pages(block_tables, seq_lens, page_size, self.device)
        else:
            width = 0
            if self._graph:
                kept = self._kept.get("page table")
                width = kept_width(self._indices, indptr.numel() - 1) if kept is None else kept.shape[1]
            pages = read_pages(indptr, indices, last_page_len, page_size, self.device, width)
        self._rows_q = q_len_per_req
        pages.table, pages.used = self._keep("page table", pages.table), self._keep("lengths", pages.used)
        self._plan = attention_of(
            shape, Masks(), dtypes, [q_len_per_req] * len(pages.lengths), pages.lengths, self.device, pages=pages,
            page_size=page_size, rows_q=q_len_per_req,
            kept=(q_len_per_req, pages.table.shape[1] * page_size) if self._graph else None)

    begin_forward = plan

    def run(self, q: Tensor, paged_kv_cache: Tensor | tuple[Tensor, Tensor], *args: Any, q_scale: Scale = None,
            k_scale: Scale = None, v_scale: Scale = None, out: Tensor | None = None, lse: Tensor | None = None,
            return_lse: bool = False, enable_pdl: bool | None = None, window_left: int | None = None,
            sinks: Tensor | None = None, q_len_per_req: int | None = None,
            skip_softmax_threshold_scale_factor: float | None = None, kv_cache_sf: Any = None) -> Any:
        """out [row, head, dim], or (out, lse) with return_lse: lse is [row, head], f32, in base 2, with the sinks. The
        cache is a pair of pages, or one tensor [page, 2, ...]. It is read in place, except by ROPE_LLAMA and eight-bit
        keys, which copy the keys of the batch."""
        check_options({"args of a custom kernel": args, "kv_cache_sf": kv_cache_sf,
                       "skip_softmax_threshold_scale_factor": skip_softmax_threshold_scale_factor})
        plan = self._planned()
        if q_len_per_req is not None and q_len_per_req != self._rows_q:
            raise refuse(f"q_len_per_req is {q_len_per_req}, and plan() was given {self._rows_q}")
        k, v = pages_of(paged_kv_cache, self._kv_layout)
        return plan.run(q, k, v, out=out, lse=lse, return_lse=return_lse, sinks=sinks, window_left=window_left,
                        q_scale=q_scale, k_scale=k_scale, v_scale=v_scale)

    run_return_lse = functools.partialmethod(run, return_lse=True)


class CUDAGraphBatchDecodeWithPagedKVCacheWrapper(BatchDecodeWithPagedKVCacheWrapper):
    """BatchDecodeWithPagedKVCacheWrapper with use_cuda_graph."""

    def __init__(self, workspace_buffer: Tensor, indptr_buffer: Tensor, indices_buffer: Tensor,
                 last_page_len_buffer: Tensor, kv_layout: str = "NHD", use_tensor_cores: bool = False) -> None:
        super().__init__(workspace_buffer, kv_layout, True, use_tensor_cores, indptr_buffer, indices_buffer,
                         last_page_len_buffer)


def fast_decode_plan(self: BatchDecodeWithPagedKVCacheWrapper, indptr: Tensor, indices: Tensor, last_page_len: Tensor,
                     num_qo_heads: int, num_kv_heads: int, head_dim: int, page_size: int,
                     pos_encoding_mode: str = "NONE", window_left: int = -1, logits_soft_cap: float | None = None,
                     q_data_type: Dtype = None, kv_data_type: Dtype = None, data_type: Dtype = None,
                     sm_scale: float | None = None, rope_scale: float | None = None, rope_theta: float | None = None,
                     non_blocking: bool = True, fixed_split_size: int | None = None, disable_split_kv: bool = False,
                     q_len_per_req: int = 1, global_override_indptr_cpu: Tensor | None = None) -> None:
    """plan() of a wrapper, with indptr on the host where the caller has it there. Its positional arguments are in
    another order than those of plan(), as in FlashInfer."""
    host = indptr if global_override_indptr_cpu is None else global_override_indptr_cpu
    type(self).plan(self, host, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size,
                    pos_encoding_mode, window_left, logits_soft_cap, q_data_type, kv_data_type, data_type=data_type,
                    sm_scale=sm_scale, rope_scale=rope_scale, rope_theta=rope_theta, non_blocking=non_blocking,
                    fixed_split_size=fixed_split_size, disable_split_kv=disable_split_kv, q_len_per_req=q_len_per_req)


def single_decode_with_kv_cache(
        q: Tensor, k: Tensor, v: Tensor, kv_layout: str = "NHD", pos_encoding_mode: str = "NONE",
        use_tensor_cores: bool = False, q_scale: Scale = None, k_scale: Scale = None, v_scale: Scale = None,
        window_left: int = -1, logits_soft_cap: float | None = None, sm_scale: float | None = None,
        rope_scale: float | None = None, rope_theta: float | None = None, return_lse: bool = False) -> Any:
    """Attention of one query q [head, dim], the last of the keys. Returns out [head, dim], or (out, lse) with
    return_lse: lse is [head], f32, in base 2."""
    if q.dim() != 2:
        raise refuse(f"q is {list(q.shape)}; accepted is [head, dim]")
    found = single_prefill_with_kv_cache(
        q[None], k, v, causal=True, kv_layout=kv_layout, pos_encoding_mode=pos_encoding_mode, sm_scale=sm_scale,
        window_left=window_left, logits_soft_cap=logits_soft_cap, rope_scale=rope_scale, rope_theta=rope_theta,
        scale_q=q_scale, k_scale=k_scale, v_scale=v_scale, return_lse=return_lse)
    return (found[0][0], found[1][0]) if return_lse else found[0]
