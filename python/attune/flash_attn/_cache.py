# SPDX-License-Identifier: Apache-2.0
"""flash_attn_with_kvcache of both interfaces. Converts arguments where flash_attn's conventions differ from attune's
append and rotary."""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch import Tensor

from .._core import Error
from ..torch._ops import PLAIN
from . import _e4m3 as e4m3
from ._common import attention, window_of


def may_look(t: Tensor) -> bool:
    """Whether values can be read: not in a capture, in a compiled program, or for a tensor without values."""
    return not (torch.compiler.is_compiling() or type(t) not in PLAIN or t.is_meta
                or (t.is_cuda and torch.cuda.is_current_stream_capturing()))


def rotate(x: Tensor, cos: Tensor, sin: Tensor, rows: Tensor, interleaved: bool) -> Tensor:
    """Rotates x [..., head, dim] by rows [...] of the tables. Rows outside the tables are refused on a CPU and clamped
    on a GPU, where a check would synchronize; the library does the same."""
    if x.dtype == e4m3.E4M3:
        return rotate(x.float(), cos, sin, rows, interleaved).to(x.dtype)
    half, count = cos.shape[-1], min(len(cos), len(sin))
    rows = rows.long()
    if not count:
        raise Error("attune: rotary_cos: has no positions")
    if not rows.is_cuda and may_look(rows) and bool(((rows < 0) | (rows >= count)).any()):
        raise Error(f"attune: rotary_cos: {count} positions do not hold {int(rows.min())} ... {int(rows.max())}")
    c, s = (t.float()[rows.clamp(0, count - 1)].unsqueeze(-2) for t in (cos, sin))
    rotated = x[..., :2 * half].float()
    a, b = (rotated[..., 0::2], rotated[..., 1::2]) if interleaved else (rotated[..., :half], rotated[..., half:])
    both = a * c - b * s, a * s + b * c
    rotated = torch.stack(both, -1).flatten(-2) if interleaved else torch.cat(both, -1)
    return torch.cat([rotated.to(x.dtype), x[..., 2 * half:]], -1)


def _places(x: Tensor, cu: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """For every row of x, [batch, seq] or packed [token]: its sequence, its position there, and whether it is in a
    sequence, since packed tokens may be in none."""
    if cu is None:
        batch, seq = x.shape[:2]
        place = torch.arange(seq, device=x.device).expand(batch, seq)
        return torch.arange(batch, device=x.device)[:, None].expand(batch, seq), place, place >= 0
    token, cu = torch.arange(len(x), device=x.device), cu.long()
    sequence = (torch.bucketize(token, cu, right=True) - 1).clamp(0, len(cu) - 2)
    place = token - cu[sequence]
    return sequence, place, (place >= 0) & (token < cu[sequence + 1])


def rotary_rows(x: Tensor, cu: Tensor | None, base: Tensor, apart: bool) -> Tensor:
    """Rows of the rotary tables for the rows of x. apart=False: all rows use the first row of their sequence."""
    sequence, place, there = _places(x, cu)
    rows = base.long()[sequence]
    return torch.where(there, rows + place if apart else rows, 0)


class Rows:
    """Places of new keys and values in a cache, and the writes. Keys that do not fit are refused before anything is
    written, which waits for a GPU. Where values cannot be read, they are skipped, as in the library."""

    def __init__(self, k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, used: Tensor, cu: Tensor | None,
                 page_table: Tensor | None, cache_index: Tensor | None) -> None:
        for name, cache, new in (("k", k_cache, k), ("v", v_cache, v)):
            if (new.dtype != cache.dtype or new.shape[-2:] != cache.shape[-2:] or new.shape[:-1] != k.shape[:-1]
                    or cache.shape[:2] != k_cache.shape[:2] or new.dim() != (4 if cu is None else 3)):
                raise Error(f"attune: {name}: {new.dtype} {tuple(new.shape)} does not go into a cache of {cache.dtype} "
                            f"{tuple(cache.shape)}, or k and v differ")
        batch = len(k) if cu is None else len(cu) - 1
        for name, t in (("cache_seqlens", used), ("page_table", page_table), ("cache_batch_idx", cache_index)):
            if t is not None and t.shape[:1] != (batch,):
                raise Error(f"attune: {name} is {tuple(t.shape)}, and there are {batch} sequences")
        (rows, page), self._count = k_cache.shape[:2], k.shape[:-2].numel()
        room = page if page_table is None else page_table.shape[1] * page
        if not self._count:
            return
        if not room or rows < (batch if page_table is None and cache_index is None else 1):
            raise Error(f"attune: new keys of {batch} sequences do not fit into a cache of {tuple(k_cache.shape)}")
        sequence, place, there = (t.flatten() for t in _places(k, cu))
        first = used.long()[sequence]
        at = (first + place).clamp(0, room - 1)
        if page_table is not None:
            row, at = page_table.long()[sequence, at // page], at % page
        else:
            row = sequence if cache_index is None else cache_index.long()[sequence]
        fits = (first >= 0) & (first + place < room) & (row >= 0) & (row < rows)
        if may_look(fits) and bool((wrong := there & ~fits).any()):
            n = int(wrong.nonzero()[0])
            b, before, given = int(sequence[n]), int(first[n]), int(row[n])
            added = k.shape[1] if cu is None else int(cu[b + 1] - cu[b])
            if before < 0 or before + added > room:
                raise Error(f"attune: cache_seqlens of sequence {b}: {before} keys and {added} new ones do not fit "
                            f"into a cache of {room}")
            raise Error(f"attune: {'page_table' if page_table is not None else 'cache_batch_idx'} of sequence {b}: "
                        f"{given} is not one of {rows} in the cache")
        # A row that is not written repeats another row, or the cache's own contents if there is no other.
        fits &= there
        self._any = fits.any()
        self._source = torch.where(fits, torch.arange(self._count, device=fits.device), fits.int().argmax())
        self._place = row.clamp(0, rows - 1)[self._source], at[self._source]

    def write(self, cache: Tensor, new: Tensor) -> None:
        if not self._count:
            return
        if cache.dtype == e4m3.E4M3:  # as bytes: not every PyTorch supports index_put for e4m3
            cache, new = cache.view(torch.uint8), new.view(torch.uint8)
        rows = new.reshape(self._count, *new.shape[-2:])[self._source]
        cache[self._place] = torch.where(self._any, rows, cache[self._place])


def check_pages(block_table: Tensor, k_cache: Tensor, cache_seqlens: int | Tensor | None, k: Tensor | None) -> None:
    """Refuses lengths beyond the pages of the table, as flash_attn 2 does. Waits for lengths on a GPU, except in a
    capture or a compiled program, where values cannot be read and kernels clamp."""
    if cache_seqlens is None or not may_look(block_table):
        return
    if isinstance(cache_seqlens, Tensor):
        if not cache_seqlens.numel() or not may_look(cache_seqlens):
            return
        cache_seqlens = int(cache_seqlens.max())
    keys, room = cache_seqlens + (0 if k is None else k.shape[1]), block_table.shape[-1] * k_cache.shape[1]
    if keys > room:
        raise Error(f"attune: a sequence has {keys} keys, new ones included, over the {room} that the pages of "
                    f"block_table hold")


def check_qv(q: Tensor, v: Tensor, qv: Tensor | None) -> None:
    if qv is not None and (qv.shape != (*q.shape[:-1], v.shape[-1]) or qv.dtype != q.dtype):
        raise Error(f"attune: qv is {tuple(qv.shape)} {qv.dtype}, and beside these q and v it would be "
                    f"{(*q.shape[:-1], v.shape[-1])} {q.dtype}")


def _chosen(page_table: Tensor, index: Tensor) -> Tensor:
    """Rows of the table by cache_batch_idx. An index outside the table is refused on a CPU and clamped on a GPU, where
    a check would synchronize."""
    rows, index = len(page_table), index.long()
    if not rows:
        raise Error("attune: page_table has no rows, and cache_batch_idx names them")
    if not index.is_cuda and may_look(index) and bool((wrong := (index < 0) | (index >= rows)).any()):
        n = int(wrong.nonzero()[0])
        raise Error(f"attune: cache_batch_idx of sequence {n}: {int(index[n])} is not one of {rows} rows of page_table")
    return page_table[index.clamp(0, rows - 1)]


@torch.no_grad()
def with_cache(q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None, v: Tensor | None, *,
               rotary_cos: Tensor | None, rotary_sin: Tensor | None, cache_seqlens: int | Tensor | None,
               causal: bool, window_size: Sequence[int | None], rotary_interleaved: bool,
               rotary_seqlens: Tensor | None = None, cu_k_new: Tensor | None = None, qv: Tensor | None = None,
               descales: e4m3.Descales = (None, None, None), **named: Any) -> tuple[Tensor, Tensor]:
    """Returns (out, lse). New keys are written behind the used ones of the cache. qv: scores are q kᵀ + qv vᵀ, computed
    over concatenated keys and values, which copies the cache. e4m3 is also attended to through a copy."""
    check_qv(q, v_cache, qv)
    if (k is None) != (v is None):
        raise Error("attune: k and v of a cache are given together or not at all")
    if rotary_cos is not None and k is None:
        raise Error("attune: rotary_cos and rotary_sin need new keys and values, k and v")
    if named.get("page_table") is not None and named.get("cache_index") is not None:  # it selects rows of the table
        named["page_table"] = _chosen(named["page_table"], named.pop("cache_index"))
    cu_q = named.get("cu_q")
    batch = q.shape[0] if cu_q is None else len(cu_q) - 1
    is_e4m3 = q.dtype == e4m3.E4M3
    copied = qv is not None or is_e4m3
    if is_e4m3:
        q = e4m3.widened(q, descales, cu_q)
    used = cache_seqlens
    if isinstance(used, int):
        used = torch.full((batch,), used, dtype=torch.int32, device=q.device)
    if k is not None and used is None:
        raise Error("attune: k and v need cache_seqlens, how many keys the cache has")
    if k is not None and v is not None and used is not None:
        rows = None
        if cu_k_new is not None or copied or not (q.numel() and k.numel()):
            # Different numbers of keys, keys that are attended to through a copy, or no queries or new keys.
            rows = Rows(k_cache, v_cache, k, v, used, cu_k_new, named.get("page_table"), named.get("cache_index"))
        masked = causal or window_of(window_size) is not None
        as_many = cu_q is None and cu_k_new is None and q.shape[1] == k.shape[1]
        if rotary_cos is not None and rotary_sin is not None and (
                rotary_seqlens is not None or copied or not as_many or not (masked or q.shape[1] == 1)):
            # attune rotates a query by its position under the mask. flash_attn uses the position of the first new key
            # plus the query's index, and without a mask that of the first query for all.
            base = used if rotary_seqlens is None else rotary_seqlens
            q = rotate(q, rotary_cos, rotary_sin, rotary_rows(q, cu_q, base, masked), rotary_interleaved)
            k = rotate(k, rotary_cos, rotary_sin, rotary_rows(k, cu_k_new, base, True), rotary_interleaved)
            rotary_cos = rotary_sin = None
        if rows is not None:
            rows.write(k_cache, k)
            rows.write(v_cache, v)
            added = k.shape[1] if cu_k_new is None else cu_k_new[1:] - cu_k_new[:-1]
            used, k, v = (used + added).to(torch.int32), None, None
    if qv is not None:
        q, k_cache = torch.cat([q, qv], -1), torch.cat([k_cache, v_cache], -1)
    if is_e4m3:
        e4m3.count()
        k_cache, v_cache = k_cache.to(torch.bfloat16), v_cache.to(torch.bfloat16)
    out, lse = attention(q, k_cache, v_cache, causal=causal, window_size=window_size, k_new=k, v_new=v, used_k=used,
                         rotary_cos=rotary_cos, rotary_sin=rotary_sin, rotary_interleaved=rotary_interleaved, **named)
    return e4m3.scaled(out, descales[2], cu_q), lse
