# SPDX-License-Identifier: Apache-2.0
"""Lists of pages and masks, as FlashInfer gives them, in attune's terms. Used by plan() only: it copies indptr to the
host, as FlashInfer's does."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ._attention import refuse

_MOST_KEPT = 1 << 23  # entries of a page table that a graph keeps where no block_tables say how wide it is


def starts_of(name: str, indptr: Tensor) -> list[int]:
    """indptr on the host, checked."""
    if indptr.dim() != 1 or not indptr.numel() or indptr.is_floating_point():
        raise refuse(f"{name} is {list(indptr.shape)} of {indptr.dtype}; accepted are integers [batch + 1]")
    starts: list[int] = indptr.tolist()
    if starts[0] != 0 or any(end < first for first, end in zip(starts, starts[1:])):
        raise refuse(f"{name} does not begin with 0 or decreases: {starts[:8]}")
    return starts


def lengths_of(starts: list[int]) -> list[int]:
    return [end - first for first, end in zip(starts, starts[1:])]


@dataclasses.dataclass
class Pages:
    """The pages of all sequences."""

    table: Tensor       # [batch, page] i32
    used: Tensor        # keys of each sequence, i32
    lengths: list[int]  # the same on the host
    most: int           # the bound that the table gives


def read_pages(indptr: Tensor, indices: Tensor, last_page_len: Tensor, page_size: int, device: torch.device,
               width: int = 0) -> Pages:
    """The page table of lists of pages. width: of the table, if it has to be kept."""
    starts = starts_of("paged_kv_indptr", indptr)
    counts, last = lengths_of(starts), last_page_len.tolist()
    if len(last) != len(counts):
        raise refuse(f"paged_kv_last_page_len has {len(last)} entries, and there are {len(counts)} requests")
    if starts[-1] > indices.numel():
        raise refuse(f"paged_kv_indices has {indices.numel()} pages, and paged_kv_indptr names {starts[-1]}")
    if page_size < 1:
        raise refuse(f"page_size {page_size} is not a number of 1 and more")
    for n, (count, rows) in enumerate(zip(counts, last)):
        if count and not 1 <= rows <= page_size:
            raise refuse(f"request {n} has {rows} keys in its last page; accepted are 1 ... {page_size}")
    lengths = [(count - 1) * page_size + rows if count else 0 for count, rows in zip(counts, last)]
    widest = max(counts, default=0)
    if width and widest > width:
        raise refuse(f"a request has {widest} pages, and the graph keeps a table of {width}: give block_tables to the "
                     "first plan(), whose width is kept")
    width = width or max(widest, 1)
    begin = torch.tensor(starts[:-1], device=indices.device)[:, None]
    own = torch.tensor(counts, device=indices.device)[:, None]
    place = torch.arange(width, device=indices.device)
    if indices.numel():
        at = (begin + place).clamp(max=indices.numel() - 1)
        table = torch.where(place < own, indices[at].to(torch.int32), 0)
    else:
        table = torch.zeros(len(counts), width, dtype=torch.int32, device=indices.device)
    used = torch.tensor(lengths, dtype=torch.int32, device=device)
    return Pages(table.to(device), used, lengths, max(max(lengths, default=0), 1))


def given_pages(block_tables: Tensor, seq_lens: Tensor, page_size: int, device: torch.device) -> Pages:
    """The page table that the caller has. Entries behind a sequence's pages are not read."""
    if block_tables.dim() != 2 or seq_lens.shape[0] != block_tables.shape[0]:
        raise refuse(f"block_tables is {list(block_tables.shape)} and seq_lens {list(seq_lens.shape)}; accepted are "
                     "[batch, page] and [batch]")
    lengths: list[int] = seq_lens.flatten().tolist()
    if max(lengths, default=0) > block_tables.shape[1] * page_size:
        raise refuse(f"a request has {max(lengths)} keys, and block_tables has {block_tables.shape[1]} pages of "
                     f"{page_size}")
    used = seq_lens.flatten().to(device, torch.int32, copy=True)  # callers count on in place, for the next plan
    return Pages(block_tables.to(device, torch.int32).contiguous(), used, lengths, max(max(lengths, default=0), 1))


def kept_width(indices_buffer: Tensor | None, batch: int) -> int:
    """The width of a table that a graph keeps: the buffer's, as one request may have all pages, up to a limit."""
    if indices_buffer is None:
        raise refuse("use_cuda_graph needs paged_kv_indices_buf, or block_tables and seq_lens in plan()")
    return max(1, min(indices_buffer.numel(), _MOST_KEPT // max(batch, 1)))


def rows_of(pages: Pages, page_size: int) -> tuple[Tensor, Tensor]:
    """Page and row of every key, sequence by sequence."""
    device, lengths = pages.table.device, pages.lengths
    sequence = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths, dtype=torch.int64))
    place = torch.cat([torch.arange(n) for n in lengths] or [torch.empty(0, dtype=torch.int64)])
    sequence, place = sequence.to(device), place.to(device)
    return pages.table[sequence, place // page_size].long(), place % page_size


def starts_tensor(lengths: list[int], device: torch.device) -> Tensor:
    """Where sequences of these lengths begin, i32."""
    return torch.tensor([0, *torch.tensor(lengths, dtype=torch.int64).cumsum(0).tolist()], dtype=torch.int32,
                        device=device)


def mask_bias(custom: Tensor | None, packed: Tensor | None, len_q: list[int], len_k: list[int], dtype: torch.dtype,
              device: torch.device) -> Tensor:
    """A mask as a bias [batch, 1, q, k] of 0 and -inf. custom: [q, k] of every request, one behind another, flattened.
    packed: the same in bits, the first in the lowest of a byte, each request from a byte of its own. If both are given,
    packed is the mask."""
    sizes = [a * b for a, b in zip(len_q, len_k)]
    steps = sizes if packed is None else [(size + 7) // 8 for size in sizes]
    given = custom if packed is None else packed
    assert given is not None
    given = given.flatten().to(device)
    if given.numel() < sum(steps):
        raise refuse(f"{'custom_mask' if packed is None else 'packed_custom_mask'} has {given.numel()} elements, and "
                     f"these requests need {sum(steps)}")
    most_q, most_k = max(max(len_q, default=0), 1), max(max(len_k, default=0), 1)
    begin, end = torch.tensor([0, *steps]).cumsum(0)[:-1].to(device), torch.tensor(len_k, device=device)
    row = torch.arange(most_q, device=device)[None, :, None] * end[:, None, None]
    place = row + torch.arange(most_k, device=device)
    if not given.numel():
        return torch.zeros(len(sizes), 1, most_q, most_k, dtype=dtype, device=device)
    if packed is None:
        seen = given[(begin[:, None, None] + place).clamp(max=given.numel() - 1)] != 0
    else:
        byte = given[(begin[:, None, None] + place // 8).clamp(max=given.numel() - 1)].to(torch.int32)
        seen = (byte >> (place % 8).to(torch.int32)) & 1 != 0
    return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, -torch.inf).unsqueeze(1)
