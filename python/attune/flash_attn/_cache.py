"""flash_attn_with_kvcache of both interfaces. What attune's append and rotary say in another way is done before."""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch import Tensor

from .._core import Error
from ._common import attention, window_of


def rotate(x: Tensor, cos: Tensor, sin: Tensor, rows: Tensor, interleaved: bool) -> Tensor:
    """x [..., head, dim], whose rotary angles are rows [...] of the tables."""
    half = cos.shape[-1]
    c, s = (t.float()[rows.long()].unsqueeze(-2) for t in (cos, sin))
    turned = x[..., :2 * half].float()
    a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else (turned[..., :half], turned[..., half:])
    both = a * c - b * s, a * s + b * c
    turned = torch.stack(both, -1).flatten(-2) if interleaved else torch.cat(both, -1)
    return torch.cat([turned.to(x.dtype), x[..., 2 * half:]], -1)


def _places(x: Tensor, cu: Tensor | None) -> tuple[Tensor, Tensor]:
    """Of every row of x, [batch, seq] or packed [token]: its sequence, and where it stands there."""
    if cu is None:
        batch, seq = x.shape[:2]
        return (torch.arange(batch, device=x.device)[:, None].expand(batch, seq),
                torch.arange(seq, device=x.device).expand(batch, seq))
    token = torch.arange(len(x), device=x.device)
    sequence = torch.bucketize(token, cu.long(), right=True) - 1
    return sequence, token - cu.long()[sequence]


def _write(cache: Tensor, new: Tensor, sequence: Tensor, row: Tensor, page_table: Tensor | None,
           cache_index: Tensor | None) -> None:
    """New rows of sequences into their places of the cache."""
    if page_table is not None:
        page = cache.shape[1]
        cache[page_table.long()[sequence, row // page], row % page] = new.to(cache.dtype)
    else:
        cache[sequence if cache_index is None else cache_index.long()[sequence], row] = new.to(cache.dtype)


def check_pages(block_table: Tensor, k_cache: Tensor, cache_seqlens: int | Tensor | None, k: Tensor | None) -> None:
    """Refuses lengths that are over what the table's pages hold, as flash_attn 2 does: lengths on a GPU are waited for,
    but in a capture or a compiled program, where nobody can look and kernels clamp."""
    if cache_seqlens is None or torch.compiler.is_compiling() or type(block_table) is not Tensor:
        return
    if isinstance(cache_seqlens, Tensor):
        if not cache_seqlens.numel() or (cache_seqlens.is_cuda and torch.cuda.is_current_stream_capturing()):
            return
        cache_seqlens = int(cache_seqlens.max())
    keys, room = cache_seqlens + (0 if k is None else k.shape[1]), block_table.shape[-1] * k_cache.shape[1]
    if keys > room:
        raise Error(f"attune: a sequence has {keys} keys, new ones included, over the {room} that the pages of "
                    f"block_table hold")


@torch.no_grad()
def with_cache(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None, v: Tensor | None, *,
               rotary_cos: Tensor | None, rotary_sin: Tensor | None, cache_seqlens: int | Tensor | None,
               causal: bool, window_size: Sequence[int | None], rotary_interleaved: bool,
               rotary_seqlens: Tensor | None = None, cu_k_new: Tensor | None = None, qv: Tensor | None = None,
               **named: Any) -> tuple[Tensor, Tensor]:
    """(out, lse). New keys are written behind the used ones of the cache. qv: scores are q kᵀ + qv vᵀ, of keys and
    values beside each other, which is a copy of the cache."""
    if (k is None) != (v is None):
        raise Error("attune: k and v of a cache are given together or not at all")
    if rotary_cos is not None and k is None:
        raise Error("attune: rotary_cos and rotary_sin need new keys and values, k and v")
    if named.get("page_table") is not None and named.get("cache_index") is not None:  # it names rows of the table
        named["page_table"] = named["page_table"][named.pop("cache_index").long()]
    cu_q = named.get("cu_q")
    batch = q.shape[0] if cu_q is None else len(cu_q) - 1
    used = cache_seqlens
    if isinstance(used, int):
        used = torch.full((batch,), used, dtype=torch.int32, device=q.device)
    if k is not None and used is None:
        raise Error("attune: k and v need cache_seqlens, how many keys the cache has")
    if k is not None and v is not None and used is not None:
        masked = causal or window_of(window_size) is not None
        as_many = cu_q is None and cu_k_new is None and q.shape[1] == k.shape[1]
        if rotary_cos is not None and rotary_sin is not None and (
                rotary_seqlens is not None or qv is not None or not as_many or not (masked or q.shape[1] == 1)):
            # attune turns a query where the mask puts it; flash_attn where it would be the first new key's neighbour,
            # and without a mask all queries of a sequence as its first.
            base = (used if rotary_seqlens is None else rotary_seqlens).long()
            sequence, place = _places(q, cu_q)
            q = rotate(q, rotary_cos, rotary_sin, base[sequence] + (place if masked else 0), rotary_interleaved)
            sequence, place = _places(k, cu_k_new)
            k = rotate(k, rotary_cos, rotary_sin, base[sequence] + place, rotary_interleaved)
            rotary_cos = rotary_sin = None
        if cu_k_new is not None or qv is not None:  # different numbers of keys, or of which a copy is attended to
            sequence, place = _places(k, cu_k_new)
            for cache, new in ((k_cache, k), (v_cache, v)):
                _write(cache, new, sequence, used.long()[sequence] + place, named.get("page_table"),
                       named.get("cache_index"))
            added = k.shape[1] if cu_k_new is None else cu_k_new[1:] - cu_k_new[:-1]
            used, k, v = (used + added).to(torch.int32), None, None
    if qv is not None:
        q, k_cache = torch.cat([q, qv], -1), torch.cat([k_cache, v_cache], -1)
    return attention(q, k_cache, v_cache, causal=causal, window_size=window_size, k_new=k, v_new=v, used_k=used,
                     rotary_cos=rotary_cos, rotary_sin=rotary_sin, rotary_interleaved=rotary_interleaved, **named)
