# SPDX-License-Identifier: Apache-2.0
"""A decode loop over pages by FlashInfer's interface: every step appends one key of each request, plans and attends.
The last step is compared with plain PyTorch.

    PYTHONPATH=build/python python3 examples/serve_pages.py --steps 20"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor

from attune import flashinfer

HEADS, HEADS_K, DIM, PAGE = 8, 2, 64, 16


def lists(pages: list[list[int]], lengths: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """indptr, indices and last_page_len of lists of pages."""
    counts = torch.tensor([0, *(len(one) for one in pages)])
    return (counts.cumsum(0).int(), torch.tensor([page for one in pages for page in one], dtype=torch.int32),
            torch.tensor([(n - 1) % PAGE + 1 for n in lengths], dtype=torch.int32))


def serve(steps: int, batch: int = 3) -> float:
    """Returns the largest difference of the last step."""
    cache = torch.zeros(batch * (steps // PAGE + 2), 2, PAGE, HEADS_K, DIM)
    free = torch.randperm(len(cache)).tolist()
    pages: list[list[int]] = [[] for _ in range(batch)]
    lengths = [0] * batch
    seen: list[Tensor] = []
    decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(torch.empty(1))
    for _ in range(steps):
        for n in range(batch):
            if lengths[n] % PAGE == 0:
                pages[n].append(free.pop())
            lengths[n] += 1
        indptr, indices, last = lists(pages, lengths)
        q, k, v = torch.randn(batch, HEADS, DIM), torch.randn(batch, HEADS_K, DIM), torch.randn(batch, HEADS_K, DIM)
        seen.append(torch.stack([k, v]))
        flashinfer.append_paged_kv_cache(k, v, torch.arange(batch), torch.tensor(lengths) - 1, cache, indices, indptr,
                                         last)
        decode.plan(indptr, indices, last, HEADS, HEADS_K, DIM, PAGE, q_data_type=q.dtype)
        out = decode.run(q, cache)
    keys, values = torch.stack(seen, 3)  # [batch, head, key, dim]
    wanted = F.scaled_dot_product_attention(q[:, :, None], keys, values, enable_gqa=True)[:, :, 0]
    return float((out - wanted).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    print(f"largest difference from PyTorch: {serve(parser.parse_args().steps):.1e}")


if __name__ == "__main__":
    main()
