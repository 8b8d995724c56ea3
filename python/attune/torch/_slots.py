# SPDX-License-Identifier: Apache-2.0
"""New keys and values into a cache at given places: the operator attune::write_slots."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _core
from ._ops import PLAIN


def _write(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """slots [row]: page * rows of a page + row of the page, or below 0: not written. Nothing here waits for a GPU, so
    a row that is not written writes what the first written one writes, or what is there if there is none."""
    page_size = k_cache.shape[1]
    rows = slots.shape[0]
    if not rows or not k_cache.numel():
        return
    there = (slots >= 0) & (slots < k_cache.shape[0] * page_size)
    source = torch.where(there, torch.arange(rows, device=slots.device), there.int().argmax())
    at = slots.long()[source].clamp(0, k_cache.shape[0] * page_size - 1)
    place, any_there = (at // page_size, at % page_size), there.any()
    for cache, new in ((k_cache, k), (v_cache, v)):
        new = new[:rows]
        if cache.itemsize == 1:  # as bytes: not every PyTorch writes eight-bit floats by index
            cache, new = cache.view(torch.uint8), new.view(torch.uint8)
        cache[place] = torch.where(any_there, new[source], cache[place])


@torch.library.custom_op("attune::write_slots", mutates_args=("k_cache", "v_cache"), schema=(
    "(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slots) -> ()"))
def _operator(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    _write(k, v, k_cache, v_cache, slots)


@_operator.register_fake
def _(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    return None


def write_slots(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Writes rows k and v [row, head, dim] into pages [page, row of the page, head, dim] at slots [row]: page * rows of
    a page + row. A slot below 0 is not written; one behind the cache is refused on a CPU and not written on a GPU,
    where a check would wait. Rows of k behind slots are not written."""
    for name, new, cache in (("k", k, k_cache), ("v", v, v_cache)):
        if new.shape[1:] != cache.shape[2:] or cache.shape[:2] != k_cache.shape[:2] or new.shape[0] < slots.shape[0]:
            raise _core.Error(f"attune: {slots.shape[0]} rows of {name} {list(new.shape)} do not go into pages "
                              f"{list(cache.shape)}")
        if new.dtype != cache.dtype:
            raise _core.Error(f"attune: {name} is {new.dtype}, and the cache is {cache.dtype}")
    if torch.compiler.is_compiling() or type(k) not in PLAIN or type(k_cache) not in PLAIN:
        _operator(k, v, k_cache, v_cache, slots)
        return
    if not slots.is_cuda and slots.numel() and int(slots.max()) >= (room := k_cache.shape[0] * k_cache.shape[1]):
        raise _core.Error(f"attune: slot {int(slots.max())} is not one of {room} in the cache")
    with torch.no_grad():
        _write(k, v, k_cache, v_cache, slots)
