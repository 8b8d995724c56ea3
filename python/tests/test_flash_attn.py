# SPDX-License-Identifier: Apache-2.0
"""attune.flash_attn and attune.flash_attn_interface: the functions of flash_attn 2.x and of FlashAttention-3."""

from __future__ import annotations

import inspect
import unittest
import unittest.mock

import needs

needs.pytorch()

import torch

import attune
import attune.flash_attn as fa
import attune.flash_attn_interface as fa3
import attune.torch
from attune.flash_attn import _cache as cache_module

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def draw(*shape, device="cpu", dtype=torch.float32, grad=False):
    return torch.randn(shape).to(device, dtype).requires_grad_(grad)


def dense(q, k, v, causal=False, window=(-1, -1), scale=None, softcap=0.0, slopes=None, pad=0):
    """One sequence, [seq, head, dim], in double: (out, lse). The first `pad` keys are hidden."""
    q, k, v = (t.double() for t in (q, k[pad:], v[pad:]))
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    scores = torch.einsum("shd,thd->hst", q, k) * (scale or q.shape[-1] ** -0.5)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    apart = torch.arange(len(k), device=q.device) - (torch.arange(len(q), device=q.device)[:, None] + len(k) - len(q))
    if slopes is not None:
        scores = scores - slopes.double()[:, None, None] * apart.abs()
    left, right = window[0], 0 if causal else window[1]
    hidden = torch.zeros_like(apart, dtype=torch.bool)
    if left >= 0:
        hidden |= apart < -left
    if right >= 0:
        hidden |= apart > right
    scores = scores.masked_fill(hidden, float("-inf"))
    weights = scores.softmax(-1).nan_to_num(0)
    return torch.einsum("hst,thd->shd", weights, v), scores.logsumexp(-1)


def batched(q, k, v, **named):
    parts = [dense(a, b, c, **named) for a, b, c in zip(q, k, v)]
    return torch.stack([o for o, _ in parts]), torch.stack([lse for _, lse in parts])


def turned(x, cos, sin, first, interleaved):
    """Rotary of x [seq, head, dim] from row `first` of the tables on, element by element."""
    y = x.clone()
    half = cos.shape[1]
    for s in range(len(x)):
        for i in range(half):
            a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
            c, n = cos[first + s, i], sin[first + s, i]
            y[s, :, a], y[s, :, b] = x[s, :, a] * c - x[s, :, b] * n, x[s, :, a] * n + x[s, :, b] * c
    return y


class FlashAttn(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(11)

    def near(self, got, wanted, tolerance=3e-5):
        torch.testing.assert_close(got.double(), wanted.double(), rtol=tolerance, atol=tolerance)

    def test_dense_calls_and_their_gradients(self):
        slopes = torch.tensor([0.5, 0.3, 0.2, 0.1])
        for device in DEVICES:
            q, k, v = (draw(*s, device=device, grad=True) for s in ((2, 5, 4, 16), (2, 9, 2, 16), (2, 9, 2, 16)))
            for named in ({}, {"causal": True}, {"window_size": (3, 1)}, {"causal": True, "window_size": (2, 5)},
                          {"softcap": 3.0}, {"softmax_scale": 0.3},
                          {"alibi_slopes": slopes.to(device), "causal": True}):
                with self.subTest(device=device, **named):
                    out, lse, _ = fa.flash_attn_func(q, k, v, return_attn_probs=True, **named)
                    rename = {"window_size": "window", "softmax_scale": "scale", "alibi_slopes": "slopes"}
                    wanted, wanted_lse = batched(q, k, v, **{rename.get(n, n): x for n, x in named.items()})
                    self.near(out, wanted)
                    self.near(lse, wanted_lse)
                    d = torch.randn_like(out)
                    for g, w in zip(torch.autograd.grad(out, (q, k, v), d),
                                    torch.autograd.grad(wanted, (q, k, v), d.double())):
                        self.near(g, w, 2e-4)

    def test_slopes_may_differ_by_sequence(self):
        q, k, v = draw(2, 5, 4, 16), draw(2, 6, 4, 16), draw(2, 6, 4, 16)
        slopes = torch.rand(2, 4)
        out, lse, _ = fa.flash_attn_func(q, k, v, alibi_slopes=slopes, return_attn_probs=True)
        for b in range(2):
            wanted, wanted_lse = dense(q[b], k[b], v[b], slopes=slopes[b])
            self.near(out[b], wanted)
            self.near(lse[b], wanted_lse)

    def test_slopes_may_differ_by_sequence_of_packed_ones_and_of_caches(self):
        slopes = torch.rand(2, 4)
        q, k, v = draw(7, 4, 16), draw(9, 2, 16), draw(9, 2, 16)
        cu_q, cu_k = torch.tensor([0, 3, 7], dtype=torch.int32), torch.tensor([0, 4, 9], dtype=torch.int32)
        out, lse, _ = fa.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 4, 5, alibi_slopes=slopes, causal=True,
                                                return_attn_probs=True)
        for b, (i, j, m, n) in enumerate(((0, 3, 0, 4), (3, 7, 4, 9))):
            wanted, wanted_lse = dense(q[i:j], k[m:n], v[m:n], True, slopes=slopes[b])
            self.near(out[i:j], wanted)
            self.near(lse[:, i:j], wanted_lse)
        more, lse, _ = fa.flash_attn_varlen_func(torch.cat([q, draw(2, 4, 16)]), k, v, cu_q, cu_k, 4, 5,
                                                 alibi_slopes=slopes, causal=True, return_attn_probs=True)
        self.near(more, torch.cat([out, torch.zeros(2, 4, 16)]), 0)  # tokens in no sequence
        self.assertTrue(lse[:, 7:].isneginf().all())
        pool_k, pool_v = draw(5, 4, 2, 16), draw(5, 4, 2, 16)
        table, used = torch.tensor([[4, 1], [0, 2]], dtype=torch.int32), torch.tensor([5, 7], dtype=torch.int32)
        q, new_k, new_v = draw(2, 1, 4, 16), draw(2, 1, 2, 16), draw(2, 1, 2, 16)
        out = fa.flash_attn_with_kvcache(q, pool_k, pool_v, new_k, new_v, cache_seqlens=used, block_table=table,
                                         alibi_slopes=slopes, causal=True)
        for b in range(2):
            k, v = (pool[table[b].long()].flatten(0, 1)[:used[b] + 1] for pool in (pool_k, pool_v))
            self.near(k[-1], new_k[b, 0], 0)
            self.near(out[b], dense(q[b], k, v, slopes=slopes[b])[0])

    def test_what_does_not_go_together_is_refused_in_a_sentence(self):
        q = draw(2, 5, 4, 16)
        for wrong, call in (
                (r"alibi_slopes is \(1, 4\)", lambda: fa.flash_attn_func(q, q, q, alibi_slopes=torch.rand(1, 4))),
                (r"alibi_slopes is \(3, 4\)", lambda: fa.flash_attn_func(q, q, q, alibi_slopes=torch.rand(3, 4))),
                (r"window_size \(1,\) is not a pair", lambda: fa.flash_attn_func(q, q, q, window_size=(1,))),
                (r"qv is \(2, 3, 4, 16\)", lambda: fa3.flash_attn_func(q, q, q, qv=q[:, :3])),
                (r"qv is \(2, 5, 4, 8\)", lambda: fa3.flash_attn_with_kvcache(q, q, q, qv=q[..., :8])),
                ("qkv has 9 heads", lambda: fa3.flash_attn_qkvpacked_func(draw(2, 5, 9, 16), num_heads_q=4)),
                ("qkv has 3 heads", lambda: fa3.flash_attn_qkvpacked_func(draw(2, 5, 3, 16), num_heads_q=4))):
            with self.subTest(wrong), self.assertRaisesRegex(attune.Error, wrong):
                call()

    def test_lengths_over_the_pages_of_a_table_are_refused(self):
        for device in DEVICES:
            q, pool, new = (draw(*s, device=device) for s in ((1, 1, 2, 16), (3, 4, 2, 16), (1, 1, 2, 16)))
            table = torch.zeros(1, 2, dtype=torch.int32, device=device)
            for used, k in ((9, None), (8, new)):
                for lengths in (used, torch.tensor([used], dtype=torch.int32, device=device)):
                    with self.assertRaisesRegex(RuntimeError, "9 keys, .* over the 8 that the pages of block_table"):
                        fa.flash_attn_with_kvcache(q, pool, pool, k, k, cache_seqlens=lengths, block_table=table)
            out = fa.flash_attn_with_kvcache(q, pool, pool, cache_seqlens=8, block_table=table)
            self.near(out[0], dense(q[0], *(pool[:1].repeat(2, 1, 1, 1).flatten(0, 1),) * 2)[0])

    def test_packed_qkv_and_kv_are_the_same_call(self):
        qkv = draw(2, 6, 3, 2, 16, grad=True)
        wanted = fa.flash_attn_func(*qkv.unbind(2), causal=True)
        for got in (fa.flash_attn_qkvpacked_func(qkv, causal=True),
                    fa.flash_attn_kvpacked_func(qkv[:, :, 0], qkv[:, :, 1:], causal=True),
                    fa3.flash_attn_qkvpacked_func(qkv, causal=True),
                    fa3.flash_attn_qkvpacked_func(qkv.flatten(2, 3), causal=True, num_heads_q=2)):
            self.near(got, wanted, 1e-6)
            got.sum().backward()
            self.assertEqual(qkv.grad.shape, qkv.shape)

    def test_sequences_of_different_lengths(self):
        cu_q, cu_k = torch.tensor([0, 3, 3, 10], dtype=torch.int32), torch.tensor([0, 5, 7, 14], dtype=torch.int32)
        for device in DEVICES:
            q, k, v = (draw(*s, device=device, grad=True) for s in ((10, 4, 16), (14, 2, 16), (14, 2, 16)))
            a, b = cu_q.to(device), cu_k.to(device)
            out, lse, _ = fa.flash_attn_varlen_func(q, k, v, a, b, 7, 7, causal=True, return_attn_probs=True)
            parts = [dense(q[i:j], k[m:n], v[m:n], causal=True) for i, j, m, n in ((0, 3, 0, 5), (3, 10, 7, 14))]
            wanted = torch.cat([p for p, _ in parts])
            self.near(out, wanted)
            self.near(lse, torch.cat([p for _, p in parts], 1))
            for g, w in zip(torch.autograd.grad(out.sum(), (q, k, v)), torch.autograd.grad(wanted.sum(), (q, k, v))):
                self.near(g, w, 2e-4)
            self.near(fa3.flash_attn_varlen_func(q, k, v, a, b, 7, 7, causal=True), wanted)
            kv = torch.stack([k, v], 1)
            self.near(fa.flash_attn_varlen_kvpacked_func(q, kv, a, b, 7, 7, causal=True), wanted)

    def test_sequences_without_any_key_or_query(self):
        none, some = torch.zeros(3, dtype=torch.int32), torch.tensor([0, 2, 5], dtype=torch.int32)
        for rows, keys, cu_q, cu_k in ((5, 0, some, none), (0, 5, none, some), (0, 0, none, none)):
            with self.subTest(rows=rows, keys=keys):
                q, k, v = (draw(n, 2, 16, grad=True) for n in (rows, keys, keys))
                most = int(cu_q.diff().max()), int(cu_k.diff().max())
                out, lse, _ = fa.flash_attn_varlen_func(q, k, v, cu_q, cu_k, *most, return_attn_probs=True)
                self.assertEqual((out.shape, lse.shape), (q.shape, (2, rows)))
                self.assertFalse(out.any() or lse.isfinite().any())
                for g, t in zip(torch.autograd.grad(out.sum(), (q, k, v)), (q, k, v)):
                    self.assertEqual((g.shape, bool(g.any())), (t.shape, False))
                self.assertEqual(fa3.flash_attn_varlen_func(q, k, v, cu_q, cu_k, *most, qv=q).shape, q.shape)
        self.assertFalse(fa.flash_attn_func(draw(1, 3, 2, 16), *(draw(1, 0, 2, 16),) * 2).any())

    def test_packed_sequences_of_qkv(self):
        qkv = draw(9, 3, 2, 16)
        cu = torch.tensor([0, 4, 9], dtype=torch.int32)
        out = fa.flash_attn_varlen_qkvpacked_func(qkv, cu, 5)
        for a, b in ((0, 4), (4, 9)):
            self.near(out[a:b], dense(*qkv[a:b].unbind(1))[0])

    def test_used_lengths_of_packed_sequences(self):
        q, k, v = draw(8, 2, 16), draw(10, 2, 16), draw(10, 2, 16)
        cu_q, cu_k = torch.tensor([0, 4, 8], dtype=torch.int32), torch.tensor([0, 5, 10], dtype=torch.int32)
        out = fa3.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 4, 5, seqused_q=torch.tensor([3, 4], dtype=torch.int32),
                                         seqused_k=torch.tensor([5, 2], dtype=torch.int32))
        self.near(out[:3], dense(q[:3], k[:5], v[:5])[0])
        self.near(out[4:], dense(q[4:], k[5:7], v[5:7])[0])
        self.assertEqual(out[3].abs().max(), 0)

    def test_pages_of_packed_sequences(self):
        pool_k, pool_v = draw(6, 4, 2, 16), draw(6, 4, 2, 16)
        table = torch.tensor([[5, 0], [2, 3]], dtype=torch.int32)
        q = draw(5, 4, 16)
        cu_q, cu_k = torch.tensor([0, 2, 5], dtype=torch.int32), torch.tensor([0, 7, 12], dtype=torch.int32)
        out = fa.flash_attn_varlen_func(q, pool_k, pool_v, cu_q, cu_k, 3, 7, causal=True, block_table=table)
        for b, (i, j, n) in enumerate(((0, 2, 7), (2, 5, 5))):
            k, v = (pool[table[b].long()].flatten(0, 1)[:n] for pool in (pool_k, pool_v))
            self.near(out[i:j], dense(q[i:j], k, v, causal=True)[0])

    def test_a_cache_is_appended_to_and_turned(self):
        rows, room = torch.arange(16.0)[:, None], 12
        angles = rows * torch.tensor([1.0, 0.3, 0.1])
        cos, sin = angles.cos(), angles.sin()
        used = torch.tensor([5, 2], dtype=torch.int32)
        for device in DEVICES:
            for seq_q, causal, interleaved, module in ((1, True, True, fa), (2, True, False, fa3), (2, False, True, fa),
                                                       (2, False, False, fa)):
                with self.subTest(device=device, seq_q=seq_q, causal=causal, interleaved=interleaved):
                    q, k, v = (draw(2, seq_q, h, 16, device=device) for h in (4, 2, 2))
                    k_cache, v_cache = draw(2, room, 2, 16, device=device), draw(2, room, 2, 16, device=device)
                    out, lse = module.flash_attn_with_kvcache(
                        q, k_cache, v_cache, k, v, rotary_cos=cos.to(device), rotary_sin=sin.to(device),
                        cache_seqlens=used.to(device), causal=causal, rotary_interleaved=interleaved,
                        return_softmax_lse=True)
                    for b in range(2):
                        n = int(used[b])
                        args = (cos.to(device), sin.to(device), n, interleaved)
                        self.near(k_cache[b, n:n + seq_q], turned(k[b], *args), 1e-6)
                        self.near(v_cache[b, n:n + seq_q], v[b], 0)
                        # Without a mask, all queries of a sequence are rotated by the angle of its first new key.
                        query = turned(q[b], *args) if causal else torch.cat(
                            [turned(q[b, s:s + 1], *args) for s in range(seq_q)])
                        wanted, wanted_lse = dense(query, k_cache[b, :n + seq_q], v_cache[b, :n + seq_q], causal)
                        self.near(out[b], wanted)
                        self.near(lse[b], wanted_lse)

    def test_sequences_append_different_numbers_of_keys_turned_from_rows_of_their_own(self):
        angles = torch.arange(16.0)[:, None] * torch.tensor([1.0, 0.2])
        cos, sin = angles.cos(), angles.sin()
        q, k, v = draw(5, 4, 16), draw(4, 2, 16), draw(4, 2, 16)
        cu_q, cu_k = torch.tensor([0, 2, 5], dtype=torch.int32), torch.tensor([0, 3, 4], dtype=torch.int32)
        used, base = torch.tensor([2, 5], dtype=torch.int32), torch.tensor([1, 7], dtype=torch.int32)
        table = torch.tensor([[3, 0], [1, 4]], dtype=torch.int32)
        for pages in (None, table):
            k_cache, v_cache = (draw(2, 8, 2, 16), draw(2, 8, 2, 16)) if pages is None else (draw(5, 4, 2, 16),
                                                                                           draw(5, 4, 2, 16))
            out = fa3.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, rotary_cos=cos, rotary_sin=sin,
                                              cache_seqlens=used, page_table=pages, cu_seqlens_q=cu_q,
                                              cu_seqlens_k_new=cu_k, max_seqlen_q=3, rotary_seqlens=base, causal=True)
            for b, (i, j, m, n) in enumerate(((0, 2, 0, 3), (2, 5, 3, 4))):
                rows, args = int(used[b]), (cos, sin, int(base[b]), True)
                keys, values = ((c[b] if pages is None else c[table[b].long()].flatten(0, 1))[:rows + n - m]
                                for c in (k_cache, v_cache))
                self.near(keys[rows:], turned(k[m:n], *args), 1e-6)
                self.near(values[rows:], v[m:n], 0)
                self.near(out[i:j], dense(turned(q[i:j], *args), keys, values, True)[0])

    def test_a_cache_whose_dims_are_apart_is_refused_and_not_appended_to_as_a_copy(self):
        q, new = draw(1, 1, 2, 16), draw(1, 1, 2, 16)
        k, v = (draw(1, 6, 16, 2).transpose(2, 3) for _ in range(2))
        before = k.clone()
        with self.assertRaisesRegex(attune.Error, "contiguous"):
            fa.flash_attn_with_kvcache(q, k, v, new, new, cache_seqlens=2)
        self.near(k, before, 0)

    def test_a_scale_of_0_is_refused(self):
        q = draw(1, 4, 2, 16)
        for scale in (0.0, 1e-50, 2.36e38):
            with self.subTest(scale), self.assertRaisesRegex(attune.Error, "scale .* is not a number that kernels can use"):
                fa.flash_attn_func(q, q, q, softmax_scale=scale)

    def test_a_cache_with_pages_padding_and_an_index(self):
        for device in DEVICES:
            pool_k, pool_v = draw(7, 4, 2, 16, device=device), draw(7, 4, 2, 16, device=device)
            table = torch.tensor([[6, 1], [3, 0]], dtype=torch.int32, device=device)
            q = draw(2, 1, 4, 16, device=device)
            used = torch.tensor([7, 3], dtype=torch.int32, device=device)
            out = fa.flash_attn_with_kvcache(q, pool_k, pool_v, cache_seqlens=used, block_table=table)
            out3 = fa3.flash_attn_with_kvcache(q, pool_k, pool_v, cache_seqlens=used, page_table=table)
            swapped = fa3.flash_attn_with_kvcache(q, pool_k, pool_v, cache_seqlens=used, page_table=table.flip(0),
                                                  cache_batch_idx=torch.tensor([1, 0], device=device))
            for b in range(2):
                k, v = (pool[table[b].long()].flatten(0, 1)[:used[b]] for pool in (pool_k, pool_v))
                for got in (out, out3, swapped):
                    self.near(got[b], dense(q[b], k, v)[0])
            k_cache, v_cache = draw(3, 8, 2, 16, device=device), draw(3, 8, 2, 16, device=device)
            index, pad = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([2, 0], [1, 2]))
            out = fa.flash_attn_with_kvcache(q, k_cache, v_cache, cache_seqlens=6, cache_batch_idx=index,
                                             cache_leftpad=pad, causal=True)
            for b, row in enumerate((2, 0)):
                self.near(out[b], dense(q[b], k_cache[row, :6], v_cache[row, :6], pad=int(pad[b]))[0])

    def test_an_index_of_rows_that_a_table_of_pages_does_not_have_is_refused(self):
        pool, q, new = draw(7, 4, 2, 16), draw(2, 1, 4, 16), draw(2, 1, 2, 16)
        table = torch.tensor([[6, 1], [3, 0], [2, 5]], dtype=torch.int32)
        before = pool.clone()
        for given, sentence in (([0, 3], "sequence 1: 3 is not one of 3 rows"), ([-1, 0], "sequence 0: -1 is not one"),
                                ([2**31 - 1, 7], "sequence 0: 2147483647 is not one")):
            index = torch.tensor(given, dtype=torch.int32)
            for named in ({}, dict(k=new, v=new)):
                with self.assertRaisesRegex(attune.Error, f"cache_batch_idx of {sentence}"):
                    fa3.flash_attn_with_kvcache(q, pool, pool, cache_seqlens=2, page_table=table,
                                                cache_batch_idx=index, **named)
        with self.assertRaisesRegex(attune.Error, "page_table has no rows"):
            fa3.flash_attn_with_kvcache(q, pool, pool, cache_seqlens=2, page_table=table[:0],
                                        cache_batch_idx=torch.tensor([0, 0]))
        self.near(pool, before, 0)

    def test_probabilities_say_what_dropout_dropped(self):
        q, k, v = draw(1, 24, 2, 16), draw(1, 80, 2, 16), draw(1, 80, 2, 16)
        out, lse, s = fa.flash_attn_func(q, k, v, dropout_p=0.3, causal=True, return_attn_probs=True)
        self.assertEqual(s.shape, (1, 2, 24, 80))
        weights = s.abs() / s.abs().sum(-1, keepdim=True)
        kept = torch.where(s > 0, weights / 0.7, torch.zeros_like(weights))
        self.near(out, torch.einsum("bhst,bthd->bshd", kept, v), 1e-4)
        seen = torch.ones(24, 80).tril(56) > 0
        self.assertAlmostEqual((s < 0)[..., seen].float().mean().item(), 0.3, delta=0.04)

    def test_probabilities_of_packed_sequences(self):
        q, k, v = draw(7, 2, 16), draw(7, 2, 16), draw(7, 2, 16)
        cu = torch.tensor([0, 3, 7], dtype=torch.int32)
        out, _, s = fa.flash_attn_varlen_func(q, k, v, cu, cu, 4, 4, dropout_p=0.4, return_attn_probs=True)
        for b, (first, end) in enumerate(((0, 3), (3, 7))):
            part = s[b, :, :end - first, :end - first]
            weights = torch.where(part > 0, part / part.abs().sum(-1, keepdim=True) / 0.6, torch.zeros_like(part))
            self.near(out[first:end], torch.einsum("hst,thd->shd", weights, v[first:end]), 1e-4)

    def test_a_chunk_sees_itself(self):
        q, k, v = draw(2, 6, 2, 16), draw(2, 9, 2, 16), draw(2, 9, 2, 16)
        self.near(fa3.flash_attn_func(q, k, v, attention_chunk=-1), fa3.flash_attn_func(q, k, v), 0)  # no chunks
        place, key = torch.arange(6)[:, None] + 3, torch.arange(9)
        seen = (place // 4 == key // 4) & (key <= place)
        out = fa3.flash_attn_func(q, k, v, causal=True, attention_chunk=4)
        scores = torch.einsum("bshd,bthd->bhst", q, k).double() / 4
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        self.near(out, torch.einsum("bhst,bthd->bshd", weights, v.double()))
        cu_q, cu_k = torch.tensor([0, 6, 12], dtype=torch.int32), torch.tensor([0, 9, 18], dtype=torch.int32)
        packed = fa3.flash_attn_varlen_func(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), cu_q, cu_k, 6, 9,
                                            causal=True, attention_chunk=4)
        self.near(packed, out.flatten(0, 1), 1e-6)
        used = torch.tensor([7, 5], dtype=torch.int32)
        cached = fa3.flash_attn_with_kvcache(q[:, :2], k.clone(), v.clone(), k[:, 7:], v[:, 7:], cache_seqlens=used,
                                             causal=True, attention_chunk=4)
        self.near(cached[0], fa3.flash_attn_func(q[:1, :2], k[:1], v[:1], causal=True, attention_chunk=4)[0], 1e-6)
        pad, used = torch.tensor([2, 0], dtype=torch.int32), torch.tensor([9, 8], dtype=torch.int32)
        padded = fa3.flash_attn_with_kvcache(q, k, v, cache_seqlens=used, cache_leftpad=pad, causal=True,
                                             attention_chunk=4)
        for b, (first, end) in enumerate(((2, 9), (0, 8))):
            rows = (t[b:b + 1, first:end] for t in (k, v))
            self.near(padded[b], fa3.flash_attn_func(q[b:b + 1], *rows, causal=True, attention_chunk=4)[0], 1e-6)

    def test_queries_of_values_go_with_a_cache(self):
        q, qv, new_k, new_v = draw(2, 1, 4, 16), draw(2, 1, 4, 24), draw(2, 1, 2, 16), draw(2, 1, 2, 24)
        pool_k, pool_v = draw(5, 4, 2, 16), draw(5, 4, 2, 24)
        table, used = torch.tensor([[4, 1], [0, 2]], dtype=torch.int32), torch.tensor([5, 7], dtype=torch.int32)
        out = fa3.flash_attn_with_kvcache(q, pool_k, pool_v, new_k, new_v, qv=qv, cache_seqlens=used, page_table=table,
                                          causal=True)
        for b in range(2):
            k, v = (pool[table[b].long()].flatten(0, 1)[:used[b] + 1] for pool in (pool_k, pool_v))
            self.near(k[-1], new_k[b, 0], 0)
            self.near(out[b], dense(torch.cat([q[b], qv[b]], -1), torch.cat([k, v], -1), v)[0])

    def test_values_may_be_wider_than_a_kernel_and_add_to_scores(self):
        q, k, v = draw(1, 3, 2, 16, grad=True), draw(1, 5, 2, 16, grad=True), draw(1, 5, 2, 400, grad=True)
        out, lse = fa3.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
        wanted, wanted_lse = batched(q, k, v, causal=True)
        self.near(out, wanted)
        self.near(lse, wanted_lse)
        self.near(torch.autograd.grad(out.sum(), v)[0], torch.autograd.grad(wanted.sum(), v)[0])
        qv = draw(1, 3, 2, 24)
        out = fa3.flash_attn_func(q, k, v[..., :24], qv=qv)
        self.near(out, batched(torch.cat([q, qv], -1), torch.cat([k, v[..., :24]], -1), v[..., :24])[0])

    def test_parts_are_combined(self):
        q, k, v = draw(1, 3, 2, 16), draw(1, 10, 2, 16), draw(1, 10, 2, 16)
        parts = [fa3.flash_attn_func(q, k[:, a:b], v[:, a:b], return_attn_probs=True) for a, b in ((0, 4), (4, 10))]
        out, lse = fa3.flash_attn_combine(torch.stack([o for o, _ in parts]),
                                          torch.stack([lse.transpose(1, 2) for _, lse in parts]))
        wanted, wanted_lse = fa3.flash_attn_func(q, k, v, return_attn_probs=True)
        self.near(out, wanted)
        self.near(lse.transpose(1, 2), wanted_lse)

    def test_e4m3_is_attention_of_its_numbers_with_their_factors(self):
        for device in DEVICES:
            with self.subTest(device=device):
                q, k, v = (draw(2, n, heads, 32, device=device).to(torch.float8_e4m3fn)
                           for n, heads in ((5, 4), (9, 2), (9, 2)))
                factors = [torch.rand(2, 2, device=device) * 2 for _ in range(3)]
                wide = [t.float() * f.repeat_interleave(t.shape[2] // 2, 1)[:, None, :, None]
                        for t, f in zip((q, k, v), factors)]
                wanted, wanted_lse = batched(*wide, causal=True)
                named = dict(zip(("q_descale", "k_descale", "v_descale"), factors), causal=True)
                attune.torch.counters.clear()
                out, lse = fa3.flash_attn_func(q, k, v.transpose(1, 3).contiguous().transpose(1, 3), **named,
                                               return_attn_probs=True)
                self.assertEqual(out.dtype, torch.bfloat16)
                self.near(out, wanted, 3e-2)
                self.near(lse, wanted_lse, 3e-2)
                cu_q, cu_k = (torch.tensor(c, dtype=torch.int32, device=device) for c in ((0, 5, 10), (0, 9, 18)))
                packed = fa3.flash_attn_varlen_func(*(t.flatten(0, 1) for t in (q, k, v)), cu_q, cu_k, 5, 9, **named)
                self.near(packed, wanted.flatten(0, 1), 3e-2)
                self.near(fa3.flash_attn_func(q, k, v), batched(q, k, v)[0], 3e-2)
                self.assertEqual(attune.torch.counters.converted, 3)

    def test_e4m3_is_appended_as_it_is(self):
        for device in DEVICES:
            for interleaved in (False, True):
                with self.subTest(device=device, interleaved=interleaved):
                    q, k, v = (draw(2, 2, heads, 32, device=device).to(torch.float8_e4m3fn) for heads in (4, 2, 2))
                    caches = [draw(6, 4, 2, 32, device=device).to(torch.float8_e4m3fn) for _ in range(2)]
                    before = [t.clone() for t in caches]
                    pages = torch.tensor([[4, 0, 1], [5, 2, 3]], dtype=torch.int32, device=device)
                    cos, sin = (draw(12, 8, device=device).to(torch.float8_e4m3fn) for _ in range(2))
                    factor = torch.rand(2, 2, device=device) + 0.5
                    out = fa3.flash_attn_with_kvcache(
                        q, *caches, k, v, cache_seqlens=torch.tensor([3, 6], dtype=torch.int32, device=device),
                        page_table=pages, causal=True, q_descale=factor, v_descale=factor, rotary_cos=cos,
                        rotary_sin=sin, rotary_interleaved=interleaved)
                    for b, used in enumerate((3, 6)):
                        rows = [t.float()[pages[b].long()].flatten(0, 1) for t in caches]
                        was = [t.float()[pages[b].long()].flatten(0, 1) for t in before]
                        turn = cos.float(), sin.float(), used, interleaved
                        for mine, old, new in zip(rows, was, (turned(k[b].float(), *turn), v[b].float())):
                            self.assertTrue(torch.equal(mine[:used], old[:used]))
                            self.assertTrue(torch.equal(mine[used + 2:], old[used + 2:]))
                            torch.testing.assert_close(mine[used:used + 2], new, rtol=0.07, atol=0.01)
                        wide = turned(q[b].float(), *turn) * factor[b].repeat_interleave(2)[:, None]
                        wanted = dense(wide, *(t[:used + 2] for t in rows), causal=True)[0]
                        self.near(out[b], wanted * factor[b].repeat_interleave(2)[:, None], 6e-2)

    def test_e4m3_has_no_backward_and_wrong_factors_are_refused(self):
        q = draw(1, 4, 2, 16).to(torch.float8_e4m3fn)
        leaf = q.clone().requires_grad_()
        with self.assertRaisesRegex(attune.Error, "e4m3 has no backward"):
            fa3.flash_attn_func(leaf, leaf, leaf).float().sum().backward()
        with self.assertRaisesRegex(attune.Error, "q is e4m3, and v is torch.bfloat16"):
            fa3.flash_attn_func(q, q, q.to(torch.bfloat16))
        for wrong in (torch.ones(1, 3), torch.ones(2, 2), torch.ones(1, 2, dtype=torch.float64)):
            with self.assertRaisesRegex(attune.Error, r"k_descale is \[batch, heads of keys\] in f32, here \(1, 2\)"):
                fa3.flash_attn_func(q, q, q, k_descale=wrong)
        with self.assertRaisesRegex(attune.Error, "qv beside e4m3"):
            fa3.flash_attn_func(q, q, q, qv=q)

    def test_flash_attn_2_refuses_e4m3(self):
        q = draw(1, 4, 2, 16).to(torch.float8_e4m3fn)
        wide, cu = q.float(), torch.tensor([0, 4], dtype=torch.int32)
        qkv = torch.stack([wide] * 3, 2).to(q.dtype)
        for name, run in (
                ("func", lambda: fa.flash_attn_func(q, q, q)),
                ("keys", lambda: fa.flash_attn_func(wide, q, q)),
                ("no query", lambda: fa.flash_attn_func(q[:, :0], q, q)),
                ("probabilities", lambda: fa.flash_attn_func(q, q, q, 0.1, return_attn_probs=True)),
                ("packed", lambda: fa.flash_attn_qkvpacked_func(qkv)),
                ("varlen", lambda: fa.flash_attn_varlen_func(q[0], q[0], q[0], cu, cu, 4, 4)),
                ("cache", lambda: fa.flash_attn_with_kvcache(q, q, q)),
                ("new keys", lambda: fa.flash_attn_with_kvcache(wide, wide, wide, q, q, cache_seqlens=0))):
            with self.subTest(name), self.assertRaisesRegex(
                    attune.Error, "flash_attn 2 has no e4m3: attune.flash_attn_interface has"):
                run()

    def test_an_append_that_does_not_fit_is_refused_and_writes_nothing(self):
        for device in DEVICES:
            for dtype in (torch.float8_e4m3fn, torch.float32):
                q, k, v = (draw(2, 2, heads, 32, device=device).to(dtype) for heads in (4, 2, 2))
                caches = [draw(6, 4, 2, 32, device=device).to(dtype) for _ in range(2)]
                before = [t.float() for t in caches]

                def whole(*numbers):
                    return torch.tensor(numbers, dtype=torch.int32, device=device)

                packed = {} if dtype == torch.float8_e4m3fn else dict(cu_seqlens_k_new=whole(0, 2, 4))
                if packed:
                    k, v = k.flatten(0, 1), v.flatten(0, 1)
                table = torch.arange(6, dtype=torch.int32, device=device).reshape(2, 3)
                cos = draw(4, 8, device=device)
                for why, named in (
                        ("cache_seqlens of sequence 1: 3 keys and 2 new ones do not fit into a cache of 4",
                         dict(cache_seqlens=whole(2, 3), cache_batch_idx=whole(3, 5))),
                        ("cache_seqlens of sequence 1: 11 keys and 2 new ones do not fit into a cache of 12",
                         dict(cache_seqlens=whole(2, 11), page_table=table)),
                        ("cache_seqlens of sequence 0: -1 keys",
                         dict(cache_seqlens=whole(-1, 2), cache_batch_idx=whole(3, 5))),
                        ("sequence 0: 3 keys and 2", dict(cache_seqlens=whole(3, 3), cache_batch_idx=whole(3, 5),
                                                          rotary_cos=cos, rotary_sin=cos)),
                        ("cache_batch_idx of sequence 1: 6 is not one of 6",
                         dict(cache_seqlens=whole(2, 2), cache_batch_idx=whole(3, 6))),
                        ("page_table of sequence 0: -1 is not one of 6",
                         dict(cache_seqlens=whole(2, 2), page_table=table.masked_fill(table == 0, -1)))):
                    with self.subTest(device=device, dtype=dtype, why=why):
                        with self.assertRaisesRegex(attune.Error, why):
                            fa3.flash_attn_with_kvcache(q, *caches, k, v, causal=True, **packed, **named)
                        for cache, was in zip(caches, before):
                            self.assertTrue(torch.equal(cache.float(), was))

    def test_rows_of_an_append_that_nobody_looked_at_stay_inside(self):
        """As in a capture: values cannot be checked, and rows that do not fit are not written."""
        new = draw(3, 2, 1, 16)
        for used, fits in (((2, 3, -1), [(0, 0, 2), (0, 1, 3), (1, 0, 3)]), ((4, 9, -5), [])):
            for dtype in (torch.float8_e4m3fn, torch.float32):
                with self.subTest(used=used, dtype=dtype), unittest.mock.patch.object(cache_module, "may_look",
                                                                                      lambda t: False):
                    caches = [draw(3, 4, 1, 16).to(dtype) for _ in range(2)]
                    wanted = [t.float() for t in caches]
                    rows = cache_module.Rows(*caches, new.to(dtype), new.to(dtype), torch.tensor(used), None, None,
                                             None)
                    for cache, true in zip(caches, wanted):
                        rows.write(cache, new.to(dtype))
                        for b, n, at in fits:
                            true[b, at] = new.to(dtype).float()[b, n]
                        self.assertTrue(torch.equal(cache.float(), true))

    def test_tokens_behind_the_new_keys_are_not_written(self):
        q, k, v = draw(2, 1, 2, 16), draw(5, 2, 16), draw(5, 2, 16)
        caches = [draw(2, 6, 2, 16) for _ in range(2)]
        wanted = [t.clone() for t in caches]
        for cache, new in zip(wanted, (k, v)):
            cache[0, 3], cache[1, 1:3] = new[0], new[1:3]  # two tokens are in no sequence
        used, cu = (torch.tensor(t, dtype=torch.int32) for t in ((3, 1), (0, 1, 3)))
        fa3.flash_attn_with_kvcache(q, *caches, k, v, cache_seqlens=used, cu_seqlens_k_new=cu, causal=True)
        for cache, true in zip(caches, wanted):
            self.assertTrue(torch.equal(cache, true))

    def test_new_keys_of_another_shape_or_dtype_are_refused_and_not_spread(self):
        q, caches = draw(1, 1, 2, 16), [draw(1, 6, 2, 16) for _ in range(2)]
        before = [t.clone() for t in caches]
        cu, used = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([2], dtype=torch.int32)
        for new in (draw(1, 1, 16), draw(1, 2, 1), draw(1, 2, 16).half()):
            with self.assertRaisesRegex(attune.Error, "k: .* does not go into a cache of"):
                fa3.flash_attn_with_kvcache(q, *caches, new, new, cache_seqlens=used, cu_seqlens_k_new=cu)
        for cache, was in zip(caches, before):
            self.assertTrue(torch.equal(cache, was))

    def test_tables_of_angles_that_are_too_short_are_refused(self):
        q, k, caches = draw(1, 2, 2, 16), draw(1, 1, 2, 16), [draw(1, 8, 2, 16) for _ in range(2)]
        used = torch.tensor([4], dtype=torch.int32)
        with self.assertRaisesRegex(attune.Error, "rotary_cos: 4 positions do not hold 4 [.][.][.] 5"):
            fa.flash_attn_with_kvcache(q, *caches, k, k, draw(4, 8), draw(4, 8), used, causal=True)

    def test_signatures_are_theirs(self):
        for function, names in (
                (fa.flash_attn_func, "q k v dropout_p softmax_scale causal window_size softcap alibi_slopes "
                                     "deterministic return_attn_probs"),
                (fa.flash_attn_varlen_func, "q k v cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k dropout_p "
                                            "softmax_scale causal window_size softcap alibi_slopes deterministic "
                                            "return_attn_probs block_table"),
                (fa.flash_attn_with_kvcache, "q k_cache v_cache k v rotary_cos rotary_sin cache_seqlens "
                                             "cache_batch_idx cache_leftpad block_table softmax_scale causal "
                                             "window_size softcap rotary_interleaved alibi_slopes num_splits "
                                             "return_softmax_lse"),
                (fa3.flash_attn_func, "q k v softmax_scale causal qv q_descale k_descale v_descale window_size "
                                      "attention_chunk softcap num_splits pack_gqa deterministic sm_margin "
                                      "return_attn_probs")):
            self.assertEqual(list(inspect.signature(function).parameters), names.split())

    def test_what_is_not_served_is_refused(self):
        q = draw(1, 4, 2, 16)
        with self.assertRaisesRegex(attune.Error, "k_descale of FlashAttention-3 is not served"):
            fa3.flash_attn_with_kvcache(q, q, q, k_descale=torch.ones(1, 2))
        with self.assertRaisesRegex(attune.Error, "need cache_seqlens"):
            fa.flash_attn_with_kvcache(q, q, q, q, q)


if __name__ == "__main__":
    unittest.main()
