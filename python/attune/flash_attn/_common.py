# SPDX-License-Identifier: Apache-2.0
"""Shared by the functions of flash_attn 2.x and of FlashAttention-3's interface: their conventions in attune's terms.

Both align masks to the last query and the last key, count windows inclusively with -1 for no limit, and return lse as
[batch, head, seq] or [head, token], as attune does. A row that sees no key has lse -inf here."""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch import Tensor

from .._core import Error
from .._spec import scale_of, spec_of, TENSORS
from ..torch._attend import call, reproducible
from ..torch._limits import refuse_layouts
from ..torch._sdpa import new_seed


def window_of(window_size: Sequence[int | None]) -> tuple[int, int] | None:
    if len(window_size) != 2:
        raise Error(f"attune: window_size {window_size} is not a pair")
    left, right = (-1 if side is None or side < 0 else int(side) for side in window_size)
    return None if left < 0 and right < 0 else (left, right)


def attention(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float | None, causal: bool,
              window_size: Sequence[int | None], softcap: float = 0.0, alibi_slopes: Tensor | None = None,
              dropout_p: float = 0.0, deterministic: bool = False, max_q: int = 0, max_k: int = 0,
              seed: Tensor | None = None, rotary_interleaved: bool = True, attention_chunk: int = 0,
              **tensors: Any) -> tuple[Tensor, Tensor]:
    """(out, lse) of attend() with these arguments; `tensors` by the names of attune's roles."""
    if v.shape[-1] > _WIDEST and dropout_p == 0:
        # Columns of v are independent. An append writes the same keys again.
        parts = [attention(q, k, v[..., at:at + _WIDEST], softmax_scale=softmax_scale, causal=causal,
                           window_size=window_size, softcap=softcap, alibi_slopes=alibi_slopes,
                           deterministic=deterministic, max_q=max_q, max_k=max_k,
                           rotary_interleaved=rotary_interleaved, attention_chunk=attention_chunk,
                           **_columns(tensors, at)) for at in range(0, v.shape[-1], _WIDEST)]
        return torch.cat([out for out, _ in parts], -1), parts[0][1]
    if attention_chunk and attention_chunk > 0:
        tensors["bias"] = _chunk_bias(attention_chunk, q, k, max_q, max_k, tensors)
    if not q.numel():
        alibi_slopes = None
    if alibi_slopes is not None and alibi_slopes.dim() == 2:
        return _slopes_by_sequence(q, k, v, alibi_slopes, softmax_scale=softmax_scale, causal=causal,
                                   window_size=window_size, softcap=softcap, dropout_p=dropout_p, seed=seed,
                                   deterministic=deterministic, max_q=max_q, max_k=max_k,
                                   rotary_interleaved=rotary_interleaved, **tensors)
    if dropout_p and seed is None:
        seed = new_seed(q.device)
    tensors = {**tensors, "slopes": alibi_slopes, "seed": seed if dropout_p else None}
    given = tuple(name for name in TENSORS if tensors.get(name) is not None)
    spec = spec_of(layout="thd" if "cu_q" in given else "bshd", causal=causal, window=window_of(window_size),
                   softcap=softcap != 0, dropout=dropout_p != 0, rotary_interleaved=rotary_interleaved,
                   reproducible="run" if deterministic else reproducible(), given=given)
    if not spec.append:  # an append writes k and v: they must not be copies
        k, v = _rows("k", k), _rows("v", v)
    return call(spec, _rows("q", q), k, v, [_whole(name, tensors[name]) for name in given],
                (scale_of(softmax_scale), softcap, dropout_p), (max_q, max_k), True)


def _rows(name: str, t: Tensor) -> Tensor:
    try:
        return t if t.stride(-1) == 1 or t.shape[-1] == 1 else t.contiguous()
    except RuntimeError:  # sparse tensors have no strides
        refuse_layouts((name,), (t,))
        raise


_WIDEST = 256  # largest dim of values that every backend supports


def _columns(tensors: dict[str, Any], at: int) -> dict[str, Any]:
    new = tensors.get("v_new")
    return tensors if new is None else {**tensors, "v_new": new[..., at:at + _WIDEST]}


def _chunk_bias(chunk: int, q: Tensor, k: Tensor, max_q: int, max_k: int, tensors: dict[str, Tensor | None]) -> Tensor:
    """The bias for attention within chunks of positions: [batch or 1, 1, q, k], 0 or -inf. Positions, and columns of a
    bias, begin behind the padding."""
    cu_q, cu_k, used_q, used_k, new = (tensors.get(name) for name in ("cu_q", "cu_k", "used_q", "used_k", "k_new"))
    pages, pad = tensors.get("page_table"), tensors.get("left_pad")
    rows = q.shape[1] if cu_q is None else max_q
    keys = max_k if cu_k is not None else k.shape[1] if pages is None else pages.shape[1] * k.shape[1]
    count_q = used_q if used_q is not None else rows if cu_q is None else cu_q[1:] - cu_q[:-1]
    count_k = used_k if used_k is not None else keys if cu_k is None else cu_k[1:] - cu_k[:-1]
    behind = count_k - count_q + (0 if new is None or used_k is None else new.shape[1])
    if pad is not None:
        behind = behind - pad
    if isinstance(behind, int):
        behind = torch.tensor([behind], device=q.device)
    place = torch.arange(rows, device=q.device) + behind[:, None]
    first = (place - place % chunk)[:, None, :, None]
    key = torch.arange(keys, device=q.device)
    hidden = (key < first) | (key >= first + chunk)
    return torch.zeros(hidden.shape, dtype=q.dtype, device=q.device).masked_fill_(hidden, -torch.inf)


_INTEGERS = ("cu_q", "cu_k", "used_q", "used_k", "left_pad", "cache_index", "page_table")
_FLOATS = ("slopes", "rotary_cos", "rotary_sin")


def _whole(name: str, t: Tensor) -> Tensor:
    """Converts to the dtype that the library reads: rotary tables come in the dtype of q."""
    if name in _INTEGERS:
        return t.to(torch.int32)
    if name in _FLOATS:
        return t.to(torch.float32)
    return _rows(name, t)


_BY_SEQUENCE = ("used_q", "used_k", "left_pad", "cache_index", "page_table", "k_new", "v_new")


def _slopes_by_sequence(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, **named: Any) -> tuple[Tensor, Tensor]:
    """ALiBi slopes [batch, head]: attune's slopes are per head, so each sequence is a separate call."""
    cu_q, cu_k = (named.pop(name, None) for name in ("cu_q", "cu_k"))
    batch = len(q) if cu_q is None else len(cu_q) - 1
    if slopes.shape != (batch, q.shape[-2]):
        raise Error(f"attune: alibi_slopes is {tuple(slopes.shape)}, not [head] or [batch, head], here "
                    f"{(batch, q.shape[-2])}")
    starts_q, starts_k = (None if cu is None else cu.tolist() for cu in (cu_q, cu_k))
    # Pages, and indexed rows of a cache, are shared by all sequences.
    shared = named.get("page_table") is not None or named.get("cache_index") is not None
    parts = []
    for b in range(batch):
        here = {name: t[b:b + 1] if name in _BY_SEQUENCE and t is not None else t for name, t in named.items()}
        queries = q[b:b + 1] if starts_q is None else q[None, starts_q[b]:starts_q[b + 1]]
        keys, values = (t if shared else t[b:b + 1] if starts_k is None else t[None, starts_k[b]:starts_k[b + 1]]
                        for t in (k, v))
        if queries.shape[1]:
            parts.append(attention(queries, keys, values, alibi_slopes=slopes[b], **{**here, "max_q": 0, "max_k": 0}))
    if starts_q is None:
        return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts])
    behind, heads = len(q) - starts_q[-1], q.shape[1]  # tokens in no sequence
    outs = [*(out[0] for out, _ in parts), q.new_zeros(behind, heads, v.shape[-1])]
    lses = [*(lse[0] for _, lse in parts), q.new_full((heads, behind), -torch.inf, dtype=torch.float32)]
    return torch.cat(outs), torch.cat(lses, 1)


@torch.no_grad()
def probabilities(q: Tensor, k: Tensor, **named: Any) -> Tensor:
    """For tests: exp(score - maximum of the row), negated where dropout drops it, [batch, head, q, k].

    The same attention with columns of the identity as values gives the weight of each key."""
    cu_q, cu_k = named.get("cu_q"), named.get("cu_k")
    heads, step = k.shape[-2], 64
    if cu_k is None:
        place, count = torch.arange(k.shape[1], device=k.device).expand(k.shape[:2]), k.shape[1]
    else:
        place = torch.arange(len(k), device=k.device)
        place = place - cu_k.long()[torch.bucketize(place, cu_k.long(), right=True) - 1]
        count = int((cu_k[1:] - cu_k[:-1]).max()) if len(cu_k) > 1 else 0
    q, k = q.detach().float(), k.detach().float()

    def weights(**options: Any) -> Tensor:
        columns = []
        for first in range(0, count, step):
            one = (place[..., None] == torch.arange(first, first + step, device=k.device)).float()
            one = one[..., None, :].expand(*k.shape[:-2], heads, step).contiguous()
            columns.append(attention(q, k, one, **{**named, **options})[0])
        return torch.cat(columns, -1)[..., :count] if columns else q.new_zeros((*q.shape[:-1], 0))

    kept = weights()
    whole = weights(dropout_p=0.0, seed=None)
    most = whole.amax(-1, keepdim=True) if count else whole.new_ones(())
    scaled = whole / most.clamp_min(torch.finfo(torch.float32).tiny)
    signed = torch.where((kept == 0) & (whole > 0), -scaled, scaled)
    if cu_q is None:
        return signed.transpose(1, 2)
    starts = cu_q.tolist()
    most_q = max((end - first for first, end in zip(starts, starts[1:])), default=0)
    padded = signed.new_zeros(len(starts) - 1, most_q, *signed.shape[1:])
    for b, (first, end) in enumerate(zip(starts, starts[1:])):
        padded[b, :end - first] = signed[first:end]
    return padded.transpose(1, 2)
