# SPDX-License-Identifier: Apache-2.0
"""Continuous batching of transformers: attention over its cache of pages, in place.

A step packs new tokens of all requests, [1, head, token, dim]. transformers lists, for each layer group, where every
key of the step lies in the cache (read_index) and where the new ones go (write_index), or, in steps of one token a
request, a table of pages (block_table). Pages of full attention are read in place; a sliding window's are a
ring that new keys overwrite, so transformers gathers those before it writes."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from ._core import Error
from .torch import attend
from .torch._slots import write_slots


@dataclasses.dataclass
class _Layer:
    """The cache of one layer: views [page, row, head, dim], and which of transformers' lists it uses."""

    k: Tensor
    v: Tensor
    group: int
    kind: str  # the name of its lengths in cu_seq_lens_k


def _layer_of(cache: Any, layer: int) -> _Layer | None:
    """None: the layer's keys cannot be read in place."""
    allocators = getattr(cache, "layer_to_allocator", None)
    if allocators is not None:  # since transformers 5.20
        own = allocators[layer]
        if own.layer_type == "sliding_attention":
            return None
        if own.layer_type != "full_attention":
            raise Error(f"attune.transformers: continuous batching with layers of {own.layer_type!r} is not served; "
                        "accepted are full_attention and sliding_attention")
        k, v = own.get_cache_for_block_table(layer)
        return _Layer(k, v, own.index, own.layer_type)
    places = getattr(cache, "layer_index_to_group_indices", None)
    if places is None or not hasattr(cache, "sliding_windows"):
        raise Error(f"attune.transformers: {type(cache).__name__} is not a cache of continuous batching that attune "
                    "knows; known are those of transformers 5.17 to 5.23")
    group, at = places[layer]
    if cache.sliding_windows[layer] != 1:
        return None
    shape = (-1, cache.block_size, cache.num_key_value_heads, cache.head_dim)
    k, v = (_whole_pages(t, cache.block_size).view(shape) for t in (cache.key_cache[at], cache.value_cache[at]))
    return _Layer(k, v, group, "full_attention")


def _window_of(cache: Any, layer: int) -> int:
    """The keys that a query of a layer with a sliding window sees: as many as the ring holds."""
    allocators = getattr(cache, "layer_to_allocator", None)
    return int(cache.sliding_windows[layer] if allocators is None else allocators[layer].sliding_window)


def _whole_pages(rows: Tensor, page: int) -> Tensor:
    """The rows of whole pages; a few more hold what nobody reads."""
    return rows[:rows.shape[0] // page * page]


def _table(step: dict[str, Any], cache: Any, layer: int, own: _Layer, cu_k: Tensor, max_k: int) -> Tensor:
    """The page table [batch, page] of a step: every page's first key tells the page. Layers of a group share it, so the
    first of them in a step makes it."""
    index = step["read_index"][own.group]
    kept: dict[int, tuple[int, Any, Tensor]] = cache.__dict__.setdefault("_attune_tables", {})
    what = (index.data_ptr(), index.shape, cu_k.shape, max_k) if not torch.compiler.is_compiling() else None
    last, of, table = kept.get(own.group, (layer, None, None))
    if what is not None and of == what and layer > last and table is not None:
        kept[own.group] = (layer, what, table)
        return table
    page = own.k.shape[1]
    first = torch.arange(0, max(max_k, 1), page, device=index.device)
    at = (cu_k[:-1, None].long() + first).clamp(max=index.shape[0] - 1)
    there = first < (cu_k[1:] - cu_k[:-1])[:, None]
    table = torch.where(there, index[at] // page, 0).to(torch.int32)
    if what is not None:
        kept[own.group] = (layer, what, table)
    return table


def _lengths(step: dict[str, Any], kind: str) -> tuple[Tensor, Tensor, int, int]:
    """cu_q, cu_k, max_q and max_k of a step. Names of the bounds changed in transformers 5.20."""
    cu_q, cu_k = step["cu_seq_lens_q"], step["cu_seq_lens_k"]
    max_q = step.get("max_length_q", step.get("max_seqlen_q"))
    max_k = step.get("max_length_k", step.get("max_seqlen_k"))
    if isinstance(cu_k, dict):
        cu_k, max_k = cu_k[kind], max_k[kind]  # type: ignore[index]
    return cu_q.to(torch.int32), cu_k.to(torch.int32), int(max_q or 0), int(max_k or 0)


NAMES = frozenset(("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "max_seqlen_q", "max_seqlen_k",
                   "read_index", "write_index", "block_table", "logits_indices", "logits_processor_args", "is_causal"))


@torch.no_grad()
def attention(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, cache: Any, scaling: float | None,
              options: dict[str, Any], step: dict[str, Any]) -> Tensor:
    """[1, token, head, dim] of a step: writes the new keys and values, and attends."""
    layer: int = module.layer_idx  # type: ignore[assignment]
    q, k, v = (t[0].transpose(0, 1) for t in (query, key, value))
    own = _layer_of(cache, layer)
    kind = "full_attention" if own is not None else "sliding_attention"
    cu_q, cu_k, max_q, max_k = _lengths(step, kind)
    named: dict[str, Any] = {"scale": scaling, "causal": True, **options}
    if own is None:
        named["window"] = (_window_of(cache, layer) - 1, 0)
    used = cu_k[1:] - cu_k[:-1]
    if step.get("block_table") is not None:
        if own is None:
            raise Error("attune.transformers: a block_table is given for a layer with a sliding window")
        return _decode(q, k, v, own, step["block_table"][own.group], used, named)
    if own is None or not step["read_index"][own.group].numel():
        k, v = _updated(cache, key, value, layer, step)
        return attend(q, k, v, layout="thd", cu_q=cu_q, cu_k=cu_k, max_q=max_q, max_k=max_k, **named)[None]
    write_slots(k, v, own.k, own.v, step["write_index"][own.group])
    table = _table(step, cache, layer, own, cu_k, max_k)
    return attend(q, own.k, own.v, layout="thd", cu_q=cu_q, used_k=used, page_table=table, max_q=max_q, max_k=max_k,
                  **named)[None]


def _updated(cache: Any, key: Tensor, value: Tensor, layer: int, step: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Keys and values [token, head, dim] of a step without earlier keys or with a sliding window, by transformers' own
    update, which also writes them."""
    if hasattr(cache, "layer_to_allocator"):
        k, v = cache.update(key_states=key, value_states=value, layer_idx=layer, kwargs=dict(step))
        return k[0].transpose(0, 1), v[0].transpose(0, 1)
    k, v = cache.update(key_states=key, value_states=value, layer_idx=layer, read_index=step["read_index"],
                        write_index=step["write_index"])
    return k, v


def _decode(q: Tensor, k: Tensor, v: Tensor, own: _Layer, table: Tensor, used: Tensor, named: dict[str, Any]) -> Tensor:
    """One token a request. used counts it; requests of a padded batch have 0 keys, and nothing of them is written."""
    batch, page = table.shape[0], own.k.shape[1]
    at = (used - 1).clamp_min(0).long()
    slots = table.gather(1, (at // page)[:, None])[:, 0].long() * page + at % page
    write_slots(k[:batch], v[:batch], own.k, own.v, torch.where(used > 0, slots, -1))
    out = attend(q[:batch, None], own.k, own.v, layout="bshd", used_k=used, page_table=table.to(torch.int32), **named)
    if q.shape[0] > batch:
        out = torch.cat([out, out.new_zeros(q.shape[0] - batch, *out.shape[1:])])
    return out.transpose(0, 1)
