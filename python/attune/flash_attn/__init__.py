# SPDX-License-Identifier: Apache-2.0
"""The functions of flash_attn 2.x, with their signatures and return values, implemented by attune on CUDA and on the
CPU.

    from attune.flash_attn import flash_attn_func      # was: from flash_attn import flash_attn_func
    attune.flash_attn.install()                        # or: `import flash_attn` is attune, in this process"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .._core import Error
from . import _e4m3 as e4m3
from ._alias import install, uninstall
from ._cache import check_pages, with_cache
from ._common import attention, probabilities

__all__ = ["flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
           "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache",
           "install", "uninstall"]
__version__ = "2.8.4"  # the emulated version, for programs that check it

Window = tuple[int, int]
_NO_WINDOW: Window = (-1, -1)


def _get_block_size_n(device: Any, head_dim: int, is_dropout: bool, is_causal: bool) -> int:
    """The block size of the running maximum in return_attn_probs; here a row has one maximum."""
    return 1 << 30


def _refuse_e4m3(*tensors: Tensor | None) -> None:
    for t in tensors:
        if t is not None and t.dtype == e4m3.E4M3:
            raise Error("attune: flash_attn 2 has no e4m3: attune.flash_attn_interface has")


def _attend(q: Tensor, k: Tensor, v: Tensor, return_attn_probs: bool, **named: Any) -> Any:
    _refuse_e4m3(q, k, v)
    if not return_attn_probs:
        return attention(q, k, v, **named)[0]
    if named["dropout_p"]:
        from ..torch._sdpa import new_seed

        named["seed"] = new_seed(q.device)
    out, lse = attention(q, k, v, **named)
    return out, lse, probabilities(q, k, **named) if named["dropout_p"] else None


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                    causal: bool = False, window_size: Window = _NO_WINDOW, softcap: float = 0.0,
                    alibi_slopes: Tensor | None = None, deterministic: bool = False,
                    return_attn_probs: bool = False) -> Any:
    """q [batch, seq_q, heads, dim], k and v [batch, seq_k, heads_k, dim]. Returns out, or (out, lse, probabilities)
    with return_attn_probs; the probabilities are for tests, and None without dropout."""
    return _attend(q, k, v, return_attn_probs, dropout_p=dropout_p, softmax_scale=softmax_scale, causal=causal,
                   window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes, deterministic=deterministic)


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                             causal: bool = False, window_size: Window = _NO_WINDOW, softcap: float = 0.0,
                             alibi_slopes: Tensor | None = None, deterministic: bool = False,
                             return_attn_probs: bool = False) -> Any:
    """flash_attn_func with kv [batch, seq_k, 2, heads_k, dim]."""
    return flash_attn_func(q, kv[:, :, 0], kv[:, :, 1], dropout_p, softmax_scale, causal, window_size, softcap,
                           alibi_slopes, deterministic, return_attn_probs)


def flash_attn_qkvpacked_func(qkv: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None,
                              causal: bool = False, window_size: Window = _NO_WINDOW, softcap: float = 0.0,
                              alibi_slopes: Tensor | None = None, deterministic: bool = False,
                              return_attn_probs: bool = False) -> Any:
    """flash_attn_func with qkv [batch, seq, 3, heads, dim]."""
    return flash_attn_func(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], dropout_p, softmax_scale, causal, window_size,
                           softcap, alibi_slopes, deterministic, return_attn_probs)


def flash_attn_varlen_func(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                           max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
                           softmax_scale: float | None = None, causal: bool = False, window_size: Window = _NO_WINDOW,
                           softcap: float = 0.0, alibi_slopes: Tensor | None = None, deterministic: bool = False,
                           return_attn_probs: bool = False, block_table: Tensor | None = None) -> Any:
    """q [tokens, heads, dim] of all sequences, which begin at cu_seqlens_q; k and v likewise, or, with block_table,
    pages [pages, page, heads_k, dim]."""
    named = dict(dropout_p=dropout_p, softmax_scale=softmax_scale, causal=causal, window_size=window_size,
                 softcap=softcap, alibi_slopes=alibi_slopes, deterministic=deterministic, cu_q=cu_seqlens_q,
                 max_q=int(max_seqlen_q), max_k=int(max_seqlen_k))
    if block_table is None:
        named["cu_k"] = cu_seqlens_k
    else:
        named.update(page_table=block_table, used_k=cu_seqlens_k[1:] - cu_seqlens_k[:-1])
    return _attend(q, k, v, return_attn_probs, **named)


def flash_attn_varlen_kvpacked_func(q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
                                    max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
                                    softmax_scale: float | None = None, causal: bool = False,
                                    window_size: Window = _NO_WINDOW, softcap: float = 0.0,
                                    alibi_slopes: Tensor | None = None, deterministic: bool = False,
                                    return_attn_probs: bool = False) -> Any:
    """flash_attn_varlen_func with kv [tokens, 2, heads_k, dim]."""
    return flash_attn_varlen_func(q, kv[:, 0], kv[:, 1], cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
                                  dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                                  return_attn_probs)


def flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, dropout_p: float = 0.0,
                                     softmax_scale: float | None = None, causal: bool = False,
                                     window_size: Window = _NO_WINDOW, softcap: float = 0.0,
                                     alibi_slopes: Tensor | None = None, deterministic: bool = False,
                                     return_attn_probs: bool = False) -> Any:
    """flash_attn_varlen_func with qkv [tokens, 3, heads, dim]."""
    return flash_attn_varlen_func(qkv[:, 0], qkv[:, 1], qkv[:, 2], cu_seqlens, cu_seqlens, max_seqlen, max_seqlen,
                                  dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic,
                                  return_attn_probs)


def flash_attn_with_kvcache(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None,
                            v: Tensor | None = None, rotary_cos: Tensor | None = None,
                            rotary_sin: Tensor | None = None, cache_seqlens: int | Tensor | None = None,
                            cache_batch_idx: Tensor | None = None, cache_leftpad: Tensor | None = None,
                            block_table: Tensor | None = None, softmax_scale: float | None = None,
                            causal: bool = False, window_size: Window = _NO_WINDOW, softcap: float = 0.0,
                            rotary_interleaved: bool = True, alibi_slopes: Tensor | None = None, num_splits: int = 0,
                            return_softmax_lse: bool = False) -> Any:
    """Attention over a cache. New keys k and v, if given, are first written behind cache_seqlens; with rotary tables, q
    and k are rotated before that. num_splits is ignored: the planner decides. With block_table the lengths are checked,
    as in flash_attn, so a call on a GPU waits for them."""
    _refuse_e4m3(q, k_cache, v_cache, k, v)
    if block_table is not None:
        check_pages(block_table, k_cache, cache_seqlens, k)
    out, lse = with_cache(q, k_cache, v_cache, k, v, rotary_cos=rotary_cos, rotary_sin=rotary_sin,
                          cache_seqlens=cache_seqlens, causal=causal, window_size=window_size,
                          rotary_interleaved=rotary_interleaved, softmax_scale=softmax_scale, softcap=softcap,
                          alibi_slopes=alibi_slopes, cache_index=cache_batch_idx, left_pad=cache_leftpad,
                          page_table=block_table)
    return (out, lse) if return_softmax_lse else out
