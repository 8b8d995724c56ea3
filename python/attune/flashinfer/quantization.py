# SPDX-License-Identifier: Apache-2.0
"""flashinfer.quantization: bits of masks, packed into bytes."""

from __future__ import annotations

import torch
from torch import Tensor

from ._attention import refuse

__all__ = ["packbits", "segment_packbits"]


def packbits(x: Tensor, bitorder: str = "big") -> Tensor:
    """Packs the elements of x, 0 or not, eight to a byte: the first in the highest bit, or in the lowest with
    bitorder="little"."""
    packed, _ = segment_packbits(x, torch.tensor([0, x.numel()]), bitorder)
    return packed


def segment_packbits(x: Tensor, indptr: Tensor, bitorder: str = "big") -> tuple[Tensor, Tensor]:
    """packbits() of segments of x, which begin at indptr; each begins a byte. Returns the bytes and where the segments
    begin among them. Waits for indptr on a GPU."""
    if bitorder not in ("big", "little"):
        raise refuse(f"bitorder {bitorder!r} is not one of big, little")
    starts = indptr.tolist()
    begins = [0]
    for first, end in zip(starts, starts[1:]):
        begins.append(begins[-1] + (end - first + 7) // 8)
    bits = torch.zeros(begins[-1] * 8, dtype=torch.int32, device=x.device)
    flat = x.flatten() != 0
    for first, end, begin in zip(starts, starts[1:], begins):
        bits[8 * begin:8 * begin + end - first] = flat[first:end]
    places = torch.arange(8, device=x.device, dtype=torch.int32)
    weights = 1 << (places if bitorder == "little" else 7 - places)
    packed = (bits.view(-1, 8) * weights).sum(1).to(torch.uint8)
    return packed, torch.tensor(begins, dtype=indptr.dtype, device=indptr.device)
