# SPDX-License-Identifier: Apache-2.0
"""flashinfer.page: new keys and values into pages."""

from __future__ import annotations

import torch
from torch import Tensor

from ..torch._slots import write_slots
from ._attention import by_rows, check_layout, refuse

__all__ = ["append_paged_kv_cache", "get_batch_indices_positions", "get_seq_lens"]


def get_seq_lens(kv_indptr: Tensor, kv_last_page_len: Tensor, page_size: int) -> Tensor:
    """The number of keys of each request."""
    pages = kv_indptr[1:] - kv_indptr[:-1]
    return ((pages - 1).clamp_min(0) * page_size + kv_last_page_len).masked_fill(pages == 0, 0).to(torch.int32)


def get_batch_indices_positions(append_indptr: Tensor, seq_lens: Tensor, nnz: int, batch_indices: Tensor | None = None,
                                positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The request of each of nnz new rows, and its position, counted so that the last new row is the last key. Rows
    behind the last request have request -1."""
    row = torch.arange(nnz, device=append_indptr.device)
    starts = append_indptr.long()
    request = torch.bucketize(row, starts, right=True) - 1
    there = row < starts[-1]
    at = request.clamp(0, max(starts.numel() - 2, 0))
    place = seq_lens.to(row.device).long()[at] - starts[at + 1] + row
    found = (torch.where(there, request, -1).to(torch.int32), torch.where(there, place, 0).to(torch.int32))
    given = (batch_indices, positions)
    return tuple(made if t is None else t.copy_(made) for made, t in zip(found, given))  # type: ignore[return-value]


def pages_of(paged_kv_cache: Tensor | tuple[Tensor, Tensor], kv_layout: str) -> tuple[Tensor, Tensor]:
    """Views [page, row, head, dim] of keys and values."""
    if isinstance(paged_kv_cache, Tensor):
        if paged_kv_cache.dim() != 5 or paged_kv_cache.shape[1] != 2:
            raise refuse(f"paged_kv_cache is {list(paged_kv_cache.shape)}; accepted are [page, 2, ...] of five axes "
                         "and a pair of four axes")
        k, v = paged_kv_cache[:, 0], paged_kv_cache[:, 1]
    else:
        k, v = paged_kv_cache
        if k.dim() != 4 or v.dim() != 4:
            raise refuse(f"keys are {list(k.shape)} and values {list(v.shape)}; accepted are pages of four axes")
    return by_rows(kv_layout, k), by_rows(kv_layout, v)


def append_paged_kv_cache(append_key: Tensor, append_value: Tensor, batch_indices: Tensor, positions: Tensor,
                          paged_kv_cache: Tensor | tuple[Tensor, Tensor], kv_indices: Tensor, kv_indptr: Tensor,
                          kv_last_page_len: Tensor, kv_layout: str = "NHD") -> None:
    """Writes rows [row, head, dim] at their positions in the pages of their requests. Rows of request -1 are not
    written. A position outside the request's pages is refused on a CPU; on a GPU, where a check would wait, it is not
    written."""
    k, v = pages_of(paged_kv_cache, check_layout(kv_layout))
    page_size, request = k.shape[1], batch_indices.long()
    at = request.clamp_min(0)
    place = positions.long()
    index = kv_indptr.long()[at] + place.div(page_size, rounding_mode="floor")
    fits = (request >= 0) & (place >= 0) & (index < kv_indptr.long()[at + 1])
    if not fits.is_cuda and not torch.compiler.is_compiling() and bool((wrong := (request >= 0) & ~fits).any()):
        n = int(wrong.nonzero()[0])
        raise refuse(f"position {int(positions[n])} of request {int(request[n])} is not in its pages")
    page = kv_indices.long()[index.clamp(0, max(kv_indices.numel() - 1, 0))]
    slots = torch.where(fits, page * page_size + place.remainder(page_size), -1)
    write_slots(append_key, append_value, k, v, slots)
