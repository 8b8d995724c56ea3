# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/guides/from_flex_attention.md: a function of FlexAttention and the option that says the same."""

from __future__ import annotations

import unittest
import warnings
from typing import Any, Callable

import needs

needs.pytorch()

import torch

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
    raise unittest.SkipTest("FlexAttention runs on a CPU since PyTorch 2.6")

from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import attune.torch

BATCH, HEADS, QUERIES, KEYS, DIM = 2, 4, 48, 80, 32


class Flex(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        torch.manual_seed(1)
        cls.q = torch.randn(BATCH, HEADS, QUERIES, DIM)
        cls.k, cls.v = torch.randn(2, BATCH, HEADS, KEYS, DIM)

    def same(self, mask: Callable[..., Any] | None = None, score: Callable[..., Any] | None = None,
             **options: Any) -> None:
        block_mask = mask and create_block_mask(mask, BATCH, None, QUERIES, KEYS, device="cpu")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is not compiled
            theirs, lse = flex_attention(self.q, self.k, self.v, score_mod=score, block_mask=block_mask,
                                         return_lse=True)
        ours, own_lse = attune.torch.attend(self.q, self.k, self.v, layout="bhsd", return_lse=True, **options)
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(own_lse, lse, atol=1e-4, rtol=1e-4)

    def test_masks(self) -> None:
        self.same()
        self.same(lambda b, h, i, j: i >= j, causal=True, align="top_left")
        self.same(lambda b, h, i, j: (i >= j) & (i - j <= 9), window=(9, 0), align="top_left")
        self.same(lambda b, h, i, j: (i - j).abs() <= 50, window=(50, 50), align="top_left")
        length, pad = torch.tensor([30, 77], dtype=torch.int32), torch.tensor([3, 11], dtype=torch.int32)
        self.same(lambda b, h, i, j: j < length[b], used_k=length)
        self.same(lambda b, h, i, j: j >= pad[b], left_pad=pad)
        offset = torch.tensor([5, 20])
        self.same(lambda b, h, i, j: i + offset[b] >= j, causal=True, align="absolute",
                  positions=torch.stack([offset, torch.zeros_like(offset)], 1))

    def test_blocks(self) -> None:
        kept = torch.tensor([[1, 0, 1], [0, 1, 1]], dtype=torch.bool)
        lists = attune.blocks(self.q, self.k, mask=kept[None, None], block=(24, 32), layout="bhsd")
        self.same(lambda b, h, i, j: kept[i // 24, j // 32], **lists.options())

    def test_scores(self) -> None:
        slope, bias = torch.rand(HEADS), torch.randn(1, HEADS, QUERIES, KEYS)
        self.same(score=lambda s, b, h, i, j: 2 * torch.tanh(s / 2), softcap=2.0)
        self.same(score=lambda s, b, h, i, j: s - slope[h] * (i - j).abs(), slopes=slope, align="top_left")
        self.same(score=lambda s, b, h, i, j: s + bias[0, h, i, j], bias=bias)
        self.same(score=lambda s, b, h, i, j: 2 * torch.tanh(s / 2) - slope[h] * (i - j).abs() + bias[0, h, i, j],
                  softcap=2.0, slopes=slope, bias=bias, align="top_left")

    def test_another_option_is_seen(self) -> None:
        with self.assertRaises(AssertionError):
            self.same(lambda b, h, i, j: i >= j, causal=True)  # aligned to the last key


if __name__ == "__main__":
    unittest.main()
