# SPDX-License-Identifier: Apache-2.0
"""The functions of FlashAttention-3's flash_attn_interface, with their signatures and return values, implemented by
attune.

    from attune.flash_attn_interface import flash_attn_func      # was: from flash_attn_interface import ...

num_splits, pack_gqa, sm_margin and scheduler_metadata control how a kernel runs, not its result; here the planner
decides. attention_chunk uses a mask with one number per pair, qv with a cache copies the cache, and e4m3 copies q, k
and v, or the cache, to bf16."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._core import Error
from .flash_attn import _e4m3 as e4m3
from .flash_attn._cache import check_qv, with_cache
from .flash_attn._common import attention

__all__ = ["flash_attn_combine", "flash_attn_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
           "flash_attn_with_kvcache", "get_scheduler_metadata"]
__version__ = "3.0.0"  # the emulated version

Window = tuple[int | None, int | None]
_NO_WINDOW: Window = (-1, -1)


def _refuse(**given: Any) -> None:
    for name, value in given.items():
        if value is not None and (isinstance(value, Tensor) or value != 0):
            raise Error(f"attune: {name} of FlashAttention-3 is not served")


def _beside(q: Tensor, k: Tensor, v: Tensor, qv: Tensor | None) -> tuple[Tensor, Tensor]:
    """Concatenates, because scores q kᵀ + qv vᵀ are the product of the concatenated tensors."""
    check_qv(q, v, qv)
    return (q, k) if qv is None else (torch.cat([q, qv], -1), torch.cat([k, v], -1))


def _attention(q: Tensor, k: Tensor, v: Tensor, qv: Tensor | None, descales: e4m3.Descales,
               **named: Any) -> tuple[Tensor, Tensor]:
    if q.dtype != e4m3.E4M3:
        _refuse(q_descale=descales[0], k_descale=descales[1], v_descale=descales[2])
        return attention(*_beside(q, k, v, qv), v, **named)
    _refuse(**{"qv beside e4m3": qv})
    cu_q = named.get("cu_q")
    e4m3.check(descales, len(q) if cu_q is None else len(cu_q) - 1, k.shape[-2], q.device, k=k, v=v)

    def run() -> tuple[Tensor, Tensor]:
        out, lse = attention(e4m3.widened(q.detach(), descales, cu_q), k.detach().to(torch.bfloat16),
                             v.detach().to(torch.bfloat16), **named)
        return e4m3.scaled(out, descales[2], cu_q), lse

    e4m3.count()
    return e4m3.forward_only(run, (q, k, v))


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False,
                    qv: Tensor | None = None, q_descale: Tensor | None = None, k_descale: Tensor | None = None,
                    v_descale: Tensor | None = None, window_size: Window = _NO_WINDOW, attention_chunk: int = 0,
                    softcap: float = 0.0, num_splits: int = 1, pack_gqa: bool | None = None,
                    deterministic: bool = False, sm_margin: int = 0, return_attn_probs: bool = False) -> Any:
    """q [batch, seq_q, heads, dim], k and v [batch, seq_k, heads_k, dim]. Returns out, or (out, lse) with
    return_attn_probs."""
    out, lse = _attention(q, k, v, qv, (q_descale, k_descale, v_descale), softmax_scale=softmax_scale, causal=causal,
                          window_size=window_size, softcap=softcap, attention_chunk=attention_chunk,
                          deterministic=deterministic)
    return (out, lse) if return_attn_probs else out


def flash_attn_qkvpacked_func(qkv: Tensor, softmax_scale: float | None = None, causal: bool = False,
                              q_descale: Tensor | None = None, k_descale: Tensor | None = None,
                              v_descale: Tensor | None = None, window_size: Window = _NO_WINDOW,
                              attention_chunk: int = 0, softcap: float = 0.0, deterministic: bool = False,
                              num_heads_q: int | None = None, sm_margin: int = 0,
                              return_attn_probs: bool = False) -> Any:
    """flash_attn_func with qkv [batch, seq, 3, heads, dim], or, with num_heads_q, [batch, seq, heads + 2 heads_k, dim].
    """
    if qkv.dim() == 5:
        q, k, v = qkv.unbind(2)
    else:
        if num_heads_q is None or qkv.dim() != 4:
            raise Error("attune: qkv of 4 axes needs num_heads_q")
        heads_k, odd = divmod(qkv.shape[2] - num_heads_q, 2)
        if odd or heads_k < 1:
            raise Error(f"attune: qkv has {qkv.shape[2]} heads, not {num_heads_q} of q and as many of k as of v")
        q, k, v = qkv.split([num_heads_q, heads_k, heads_k], 2)
    return flash_attn_func(q, k, v, softmax_scale, causal, None, q_descale, k_descale, v_descale, window_size,
                           attention_chunk, softcap, 1, None, deterministic, sm_margin, return_attn_probs)


def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                           max_seqlen_q: int, max_seqlen_k: int, seqused_q: Tensor | None = None,
                           seqused_k: Tensor | None = None, softmax_scale: float | None = None, causal: bool = False,
                           qv: Tensor | None = None, q_descale: Tensor | None = None, k_descale: Tensor | None = None,
                           v_descale: Tensor | None = None, window_size: Window = _NO_WINDOW, attention_chunk: int = 0,
                           softcap: float = 0.0, num_splits: int = 1, pack_gqa: bool | None = None,
                           deterministic: bool = False, sm_margin: int = 0, return_attn_probs: bool = False) -> Any:
    """q [tokens, heads, dim] of all sequences, which begin at cu_seqlens_q; k and v likewise. seqused: the number of
    tokens used in each sequence."""
    out, lse = _attention(q, k, v, qv, (q_descale, k_descale, v_descale), softmax_scale=softmax_scale, causal=causal,
                          window_size=window_size, softcap=softcap, attention_chunk=attention_chunk,
                          deterministic=deterministic, cu_q=cu_seqlens_q, cu_k=cu_seqlens_k, used_q=seqused_q,
                          used_k=seqused_k, max_q=int(max_seqlen_q), max_k=int(max_seqlen_k))
    return (out, lse) if return_attn_probs else out


def flash_attn_with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None,
                            v: Tensor | None = None, qv: Tensor | None = None, rotary_cos: Tensor | None = None,
                            rotary_sin: Tensor | None = None, cache_seqlens: int | Tensor | None = None,
                            cache_batch_idx: Tensor | None = None, cache_leftpad: Tensor | None = None,
                            page_table: Tensor | None = None, cu_seqlens_q: Tensor | None = None,
                            cu_seqlens_k_new: Tensor | None = None, max_seqlen_q: int | None = None,
                            rotary_seqlens: Tensor | None = None, q_descale: Tensor | None = None,
                            k_descale: Tensor | None = None, v_descale: Tensor | None = None,
                            softmax_scale: float | None = None, causal: bool = False,
                            window_size: Window = _NO_WINDOW, attention_chunk: int = 0, softcap: float = 0.0,
                            rotary_interleaved: bool = True, scheduler_metadata: Tensor | None = None,
                            num_splits: int = 0, pack_gqa: bool | None = None, sm_margin: int = 0,
                            return_softmax_lse: bool = False) -> Any:
    """Attention over a cache. New keys k and v, if given, are first written behind cache_seqlens; with rotary tables, q
    and k are rotated before that. With cu_seqlens_q queries are packed, and max_seqlen_q bounds them."""
    descales = (q_descale, k_descale, v_descale)
    if q.dtype != e4m3.E4M3:
        _refuse(q_descale=q_descale, k_descale=k_descale, v_descale=v_descale)
    else:
        _refuse(**{"qv beside e4m3": qv})
        e4m3.check(descales, len(q) if cu_seqlens_q is None else len(cu_seqlens_q) - 1, k_cache.shape[-2], q.device,
                   k_cache=k_cache, v_cache=v_cache, k=k, v=v)
    out, lse = with_cache(q, k_cache, v_cache, k, v, rotary_cos=rotary_cos, rotary_sin=rotary_sin,
                          cache_seqlens=cache_seqlens, causal=causal, window_size=window_size,
                          rotary_interleaved=rotary_interleaved, softmax_scale=softmax_scale, softcap=softcap,
                          cache_index=cache_batch_idx, left_pad=cache_leftpad, page_table=page_table,
                          cu_q=cu_seqlens_q, max_q=int(max_seqlen_q or 0), attention_chunk=attention_chunk,
                          cu_k_new=cu_seqlens_k_new, rotary_seqlens=rotary_seqlens, qv=qv, descales=descales)
    return (out, lse) if return_softmax_lse else out


def flash_attn_combine(out_partial: Tensor, lse_partial: Tensor, out: Tensor | None = None,
                       out_dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """Combines partial attention over different keys: out_partial [parts, ..., seq, head, dim] and lse_partial [parts,
    ..., seq, head], in base e."""
    lse = torch.logsumexp(lse_partial, 0)
    share = torch.exp(lse_partial - torch.where(lse.isfinite(), lse, torch.zeros_like(lse)))
    joined = (out_partial.float() * share[..., None]).sum(0).to(out_dtype or out_partial.dtype)
    return (joined if out is None else out.copy_(joined)), lse


def get_scheduler_metadata(batch_size: int, max_seqlen_q: int, max_seqlen_k: int, num_heads_q: int, num_heads_kv: int,
                           headdim: int, cache_seqlens: Tensor, qkv_dtype: torch.dtype = torch.bfloat16,
                           headdim_v: int | None = None, cu_seqlens_q: Tensor | None = None,
                           cu_seqlens_k_new: Tensor | None = None, cache_leftpad: Tensor | None = None,
                           page_size: int | None = None, max_seqlen_k_new: int = 0, causal: bool = False,
                           window_size: Window = _NO_WINDOW, attention_chunk: int = 0, has_softcap: bool = False,
                           num_splits: int = 0, pack_gqa: bool | None = None, sm_margin: int = 0) -> None:
    """Returns None, which flash_attn_with_kvcache accepts: attune's planner needs no metadata."""
    return None
