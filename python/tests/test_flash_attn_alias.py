# SPDX-License-Identifier: Apache-2.0
"""`import flash_attn` as attune, and the parts of flash_attn besides attention: padding and rotary embeddings."""

from __future__ import annotations

import importlib
import sys
import types
import unittest

import needs

needs.pytorch()

import torch

import attune.flash_attn
import attune.flash_attn_interface
from attune.flash_attn.bert_padding import pad_input, unpad_input
from attune.flash_attn.layers.rotary import apply_rotary_emb


class Alias(unittest.TestCase):
    def test_flash_attn_is_attune_between_install_and_uninstall(self):
        before = sys.modules.get("flash_attn_interface")
        sys.modules["flash_attn_interface"] = mine = types.ModuleType("flash_attn_interface")
        try:
            attune.flash_attn.install()
            attune.flash_attn.install()  # a second call changes nothing
            scope: dict = {}
            exec("import flash_attn, flash_attn.flash_attn_interface, flash_attn_interface\n"
                 "from flash_attn import flash_attn_func\n"
                 "from flash_attn.bert_padding import index_first_axis, pad_input, unpad_input\n"
                 "from flash_attn.layers.rotary import apply_rotary_emb\n", scope)
            self.assertIs(scope["flash_attn"], attune.flash_attn)
            self.assertIs(scope["flash_attn_func"], attune.flash_attn.flash_attn_func)
            self.assertIs(scope["flash_attn_interface"], attune.flash_attn_interface)
            self.assertIs(scope["apply_rotary_emb"], apply_rotary_emb)
            self.assertIs(scope["pad_input"], pad_input)
            self.assertGreaterEqual(tuple(map(int, scope["flash_attn"].__version__.split("."))), (2, 8, 0))
        finally:
            attune.flash_attn.uninstall()
        self.assertIs(sys.modules["flash_attn_interface"], mine)
        self.assertNotIn("flash_attn.bert_padding", sys.modules)
        del sys.modules["flash_attn_interface"]
        if before is not None:
            sys.modules["flash_attn_interface"] = before
        self.assertIs(importlib.import_module("attune.flash_attn"), attune.flash_attn)

    def test_padding_goes_away_and_comes_back(self):
        x = torch.randn(3, 5, 2, requires_grad=True)
        mask = torch.tensor([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]])
        unused = torch.tensor([[0, 0, 0, 1, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
        for more, lengths in ((None, [3, 0, 5]), (unused, [4, 0, 5])):
            tokens, indices, cu_seqlens, longest, used = unpad_input(x, mask, more)
            there = mask.bool() if more is None else (mask + more).bool()
            self.assertTrue(torch.equal(tokens, x[there]))
            self.assertEqual(cu_seqlens.tolist(), [0, lengths[0], lengths[0], sum(lengths)])
            self.assertEqual((cu_seqlens.dtype, used.dtype, used.tolist(), longest),
                             (torch.int32, torch.int32, [3, 0, 5], 5))
            back = pad_input(tokens, indices, 3, 5)
            self.assertTrue(torch.equal(back, x * there[..., None]))
            gradient, = torch.autograd.grad(back.sum(), x)
            self.assertTrue(torch.equal(gradient, there[..., None].expand(3, 5, 2).float()))

    def test_rotary_embeddings_turn_pairs_as_complex_numbers(self):
        x = torch.randn(2, 4, 3, 10, dtype=torch.float32, requires_grad=True)
        angle = torch.rand(9, 4) * 6
        for offsets in (0, 2, torch.tensor([1, 5], dtype=torch.int32)):
            rows = torch.arange(4) + torch.as_tensor(offsets).expand(2)[:, None]
            turn = torch.polar(torch.ones(2, 4, 4), angle[rows])[:, :, None]
            for interleaved in (False, True):
                with self.subTest(offsets=offsets, interleaved=interleaved):
                    pairs = x[..., :8].unflatten(-1, (4, 2) if interleaved else (2, 4))
                    pairs = pairs if interleaved else pairs.transpose(-1, -2)
                    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
                    turned = turned if interleaved else turned.transpose(-1, -2)
                    wanted = torch.cat([turned.flatten(-2), x[..., 8:]], -1)
                    named = dict(interleaved=interleaved, seqlen_offsets=offsets)
                    got = apply_rotary_emb(x, angle.cos(), angle.sin(), **named)
                    torch.testing.assert_close(got, wanted)
                    d = torch.randn_like(x)
                    torch.testing.assert_close(torch.autograd.grad(got, x, d), torch.autograd.grad(wanted, x, d))
                    packed = torch.cat([x[0, :3], x[1]]).detach()
                    cu = torch.tensor([0, 3, 7], dtype=torch.int32)
                    got = apply_rotary_emb(packed, angle.cos(), angle.sin(), cu_seqlens=cu, max_seqlen=4, **named)
                    torch.testing.assert_close(got, torch.cat([wanted[0, :3], wanted[1]]))
                    there = x.detach().clone()
                    self.assertIs(apply_rotary_emb(there, angle.cos(), angle.sin(), inplace=True, **named), there)
                    torch.testing.assert_close(there, wanted)


if __name__ == "__main__":
    unittest.main()
