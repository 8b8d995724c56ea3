# SPDX-License-Identifier: Apache-2.0
"""attune.flashinfer against the definition of attention: wrappers over pages and packed keys, functions of one request,
masks, position encodings, eight-bit keys, graphs' memory, and torch.compile."""

from __future__ import annotations

import math
import sys
import unittest

import needs

needs.pytorch()

import torch

import attune
import attune.flashinfer as fi
from attune.flashinfer._attention import slopes_of
from paged import Batch, attention, example

WORKSPACE = torch.empty(1)
F32 = {"q_data_type": torch.float32}


def starts(rows):
    return torch.tensor([0, *torch.tensor(rows).cumsum(0).tolist()], dtype=torch.int32)


class Case(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)

    def close(self, got, wanted, tolerance=2e-5):
        for a, b, what in zip(got, wanted, ("out", "lse")):
            self.assertEqual(a.shape, b.shape, what)
            torch.testing.assert_close(a.double(), b, rtol=tolerance, atol=tolerance, msg=lambda m: f"{what}: {m}")


class Paged(Case):
    LENGTHS, ROWS = [37, 1, 0, 20, 8], [5, 1, 2, 20, 1]

    def plan(self, batch, dim=32, **options):
        wrapper = fi.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE, options.pop("kv_layout", "NHD"))
        wrapper.plan(starts(self.ROWS), *batch.lists, 4, 2, dim, batch.page, **{**F32, **options})
        return wrapper

    def test_masks_scales_and_caps(self):
        q = torch.randn(sum(self.ROWS), 4, 32)
        for page in (1, 8):
            batch = Batch(self.LENGTHS, page)
            for given in ({}, {"causal": True}, {"causal": True, "window_left": 3}, {"window_left": 0},
                          {"logits_soft_cap": 0.7}, {"causal": True, "sm_scale": 0.4}):
                with self.subTest(page=page, **given):
                    named = {"softcap" if name == "logits_soft_cap" else "scale" if name == "sm_scale" else name: value
                             for name, value in given.items()}
                    wrapper = self.plan(batch, **given)
                    self.close(wrapper.run(q, batch.pages, return_lse=True), batch.each(q, self.ROWS, **named))
                    sinks = torch.randn(4)
                    self.close(wrapper.run(q, batch.pages, return_lse=True, sinks=sinks),
                               batch.each(q, self.ROWS, sinks=sinks, **named))

    def test_layouts_results_of_the_caller_and_a_window_of_one_run(self):
        batch, q = Batch(self.LENGTHS, 8), torch.randn(sum(self.ROWS), 4, 32)
        wanted = batch.each(q, self.ROWS, causal=True)
        hnd = batch.pages.transpose(2, 3).contiguous()
        for layout, cache in (("NHD", batch.pages), ("HND", hnd), ("NHD", tuple(batch.pages.unbind(1))),
                              ("HND", tuple(hnd.unbind(1)))):
            wrapper = self.plan(batch, kv_layout=layout, causal=True)
            self.close(wrapper.run_return_lse(q, cache), wanted)
        out, lse = torch.full_like(q, 7), torch.full((len(q), 4), 7.0)
        got = wrapper.run(q, cache, out=out, lse=lse, return_lse=True)
        self.assertIs(got[0], out)
        self.assertIs(got[1], lse)
        self.close((out, lse), wanted)
        self.close(wrapper.run(q, cache, window_left=2, return_lse=True),
                   batch.each(q, self.ROWS, causal=True, window_left=2))

    def test_half_precision_and_batch_invariance(self):
        batch = Batch(self.LENGTHS, 8, dtype=torch.bfloat16)
        q = torch.randn(sum(self.ROWS), 4, 32).bfloat16()
        wrapper = self.plan(batch, causal=True, q_data_type="bfloat16", fixed_split_size=4)
        whole = wrapper.run(q, batch.pages)
        self.close((whole,), batch.each(q, self.ROWS, causal=True)[:1], 2e-2)
        alone = fi.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE)
        alone.plan(starts([5]), batch.indptr[:2], batch.indices, batch.last[:1], 4, 2, 32, 8, causal=True,
                   q_data_type="bfloat16", disable_split_kv=True)
        self.assertTrue(torch.equal(alone.run(q[:5], batch.pages), whole[:5]))
        self.assertTrue(alone._plan.batch_invariant and wrapper._plan.batch_invariant)

    def test_a_table_in_place_of_lists(self):
        batch, q = Batch(self.LENGTHS, 8), torch.randn(sum(self.ROWS), 4, 32)
        lengths = torch.tensor(self.LENGTHS, dtype=torch.int32)
        wrapper = self.plan(batch, causal=True, block_tables=batch.table(), seq_lens=lengths)
        lengths += 1  # counted on for the next plan, as an engine does
        self.close(wrapper.run_return_lse(q, batch.pages), batch.each(q, self.ROWS, causal=True))

    def test_bases_and_layouts_of_lse(self):
        batch, q = Batch(self.LENGTHS, 8), torch.randn(sum(self.ROWS), 4, 32)
        out, lse = batch.each(q, self.ROWS, causal=True)
        paged = self.plan(batch, causal=True, uniform_q_len=4)  # a hint
        k, v = (torch.cat([list(batch.keys(n))[part] for n in range(5)]) for part in (0, 1))
        ragged = fi.BatchPrefillWithRaggedKVCacheWrapper(WORKSPACE)
        ragged.plan(starts(self.ROWS), starts(self.LENGTHS), 4, 2, 32, causal=True, uniform_q_len=4, **F32)
        for wrapper, keys in ((paged, (batch.pages,)), (ragged, (k, v))):
            self.close(wrapper.run(q, *keys, return_lse=True, lse_base="ln"), (out, lse * math.log(2)))
            given = torch.full((4, len(q)), 7.0)
            got = wrapper.run(q, *keys, return_lse=True, lse_layout="HN", lse=given)
            self.assertIs(got[1], given)
            self.close(got, (out, lse.t()))
            for wrong in ({"lse_base": "log10"}, {"lse_layout": "HD"}):
                with self.assertRaisesRegex(attune.Error, "are not of log2, ln and of NH, HN"):
                    wrapper.run(q, *keys, return_lse=True, **wrong)

    def test_masks_of_the_caller(self):
        batch, q = Batch(self.LENGTHS, 8), torch.randn(sum(self.ROWS), 4, 32)
        seen = [torch.rand(a, b) < 0.6 for a, b in zip(self.ROWS, self.LENGTHS)]
        flat = torch.cat([part.flatten() for part in seen])
        sizes = starts([part.numel() for part in seen])
        packed, _ = fi.segment_packbits(flat, sizes, "little")
        for given in ({"custom_mask": flat}, {"packed_custom_mask": packed},
                      {"custom_mask": ~flat, "packed_custom_mask": packed, "causal": True}):
            self.close(self.plan(batch, **given).run_return_lse(q, batch.pages), batch.each(q, self.ROWS, seen=seen))
        self.close(self.plan(batch, custom_mask=flat, window_left=4).run_return_lse(q, batch.pages),
                   batch.each(q, self.ROWS, seen=seen, window_left=4))
        with self.assertRaisesRegex(attune.Error, "packed_custom_mask has 3 elements, and these requests need"):
            self.plan(batch, packed_custom_mask=packed[:3])

    def test_bits(self):
        bits = torch.tensor([1, 0, 1, 1, 0, 0, 1, 1, 1])
        self.assertEqual(fi.packbits(bits).tolist(), [0b10110011, 0b10000000])
        self.assertEqual(fi.packbits(bits, "little").tolist(), [0b11001101, 0b00000001])
        packed, begins = fi.segment_packbits(bits, torch.tensor([0, 3, 3, 9]), "little")
        self.assertEqual((packed.tolist(), begins.tolist()), ([0b101, 0b111001], [0, 1, 1, 2]))
        with self.assertRaisesRegex(attune.Error, "bitorder 'small' is not one of big, little"):
            fi.packbits(bits, "small")

    def test_eight_bit_keys_and_scales(self):
        lengths, rows = [19, 6], [3, 2]
        q = torch.randn(5, 4, 32).half()
        for eight in (torch.float8_e4m3fn, torch.float8_e5m2):
            batch = Batch(lengths, 4, dtype=eight)
            wrapper = fi.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE)
            wrapper.plan(starts(rows), *batch.lists, 4, 2, 32, 4, causal=True, kv_data_type=eight)
            out, lse = batch.each(q, rows, causal=True, scale=0.5 * 2.0 * 32 ** -0.5)
            for scales in ((0.5, 2.0, 3.0), (torch.tensor(0.5), torch.tensor([2.0]), torch.tensor([3.0, 3.0]))):
                named = dict(zip(("q_scale", "k_scale", "v_scale"), scales))
                got = wrapper.run(q, batch.pages, return_lse=True, **named)
                self.close(got, (3 * out, lse), 5e-3)

    def test_scales_of_heads(self):
        batch, q = Batch([9], 4), torch.randn(2, 4, 32)
        wrapper = fi.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE)
        wrapper.plan(starts([2]), *batch.lists, 4, 2, 32, 4, **F32)
        by_key, by_value = torch.tensor([0.5, 2.0]), torch.tensor([3.0, 1.0])
        got = wrapper.run(q, batch.pages, k_scale=by_key, v_scale=by_value, return_lse=True)
        factor = by_key.repeat_interleave(2)[:, None]
        out, lse = batch.each(q * factor, [2])
        self.close(got, (out * by_value.repeat_interleave(2)[:, None], lse))

    def test_rotary_embeddings_inside(self):
        batch, q = Batch(self.LENGTHS, 8), torch.randn(sum(self.ROWS), 4, 32)
        wrapper = self.plan(batch, causal=True, pos_encoding_mode="ROPE_LLAMA", rope_scale=2.0, rope_theta=500.0)
        got, first = wrapper.run_return_lse(q, batch.pages), 0
        for n, (rows, keys) in enumerate(zip(self.ROWS, self.LENGTHS)):
            k, v = batch.keys(n)
            here = slice(first, first + rows)
            wanted = attention(rotated(q[here], keys - rows, 2.0, 500.0), rotated(k, 0, 2.0, 500.0), v, causal=True)
            self.close([t[here] for t in got], wanted)
            first += rows

    def test_slopes_inside(self):
        batch, q = Batch(self.LENGTHS, 8), torch.randn(sum(self.ROWS), 4, 32)
        slopes = torch.tensor([0.25, 0.0625, 2.0 ** -6, 2.0 ** -8])
        biases = [slopes[:, None, None] * (torch.arange(b) - torch.arange(a)[:, None])
                  for a, b in zip(self.ROWS, self.LENGTHS)]
        for causal in (True, False):
            wrapper = self.plan(batch, causal=causal, pos_encoding_mode="ALIBI")
            self.close(wrapper.run_return_lse(q, batch.pages), batch.each(q, self.ROWS, causal=causal, bias=biases))
        torch.testing.assert_close(slopes_of(3, torch.device("cpu")), torch.tensor([2.0 ** -4, 2.0 ** -8, 2.0 ** -2]))

    def test_slopes_with_windows_and_sinks_are_served_or_refused(self):
        batch, q = Batch(self.LENGTHS, 8), torch.randn(sum(self.ROWS), 4, 32)
        pairs = sum(a * b for a, b in zip(self.ROWS, self.LENGTHS))
        mask = torch.ones(pairs, dtype=torch.bool)
        refused = "ALIBI with window_left is served with causal=True alone"
        with self.assertRaisesRegex(attune.Error, refused):
            self.plan(batch, causal=True, custom_mask=mask, window_left=3, pos_encoding_mode="ALIBI")
        k, v = batch.keys(0)
        with self.assertRaisesRegex(attune.Error, refused):
            fi.single_prefill_with_kv_cache(q[:5], k, v, custom_mask=mask[:185], causal=True, window_left=3,
                                            pos_encoding_mode="ALIBI")
        wrapper = self.plan(batch, pos_encoding_mode="ALIBI")
        with self.assertRaisesRegex(attune.Error, refused):
            wrapper.run(q, batch.pages, window_left=3)
        for causal in (True, False):
            wrapper = self.plan(batch, causal=causal, pos_encoding_mode="ALIBI")
            with self.assertRaisesRegex(attune.Error, "ALIBI with sinks is not served"):
                wrapper.run(q, batch.pages, sinks=torch.zeros(4))


def rotated(x, first, scale=1.0, theta=1e4):
    """Complex rotation of pairs (i, i + dim / 2) by position / scale * theta^(-2 i / dim)."""
    dim = x.shape[-1]
    rate = theta ** (-torch.arange(0, dim, 2).double() / dim) / scale
    turn = torch.polar(torch.ones(len(x), dim // 2).double(), (torch.arange(len(x)) + first)[:, None] * rate)
    pairs = torch.complex(x[..., :dim // 2].double(), x[..., dim // 2:].double()) * turn[:, None]
    return torch.cat([pairs.real, pairs.imag], -1)


class Others(Case):
    def test_packed_keys(self):
        rows, keys = [4, 1, 7], [9, 5, 7]
        q, k, v = torch.randn(12, 4, 32), torch.randn(21, 2, 32), torch.randn(21, 2, 16)
        wrapper = fi.BatchPrefillWithRaggedKVCacheWrapper(WORKSPACE)
        for given in ({"causal": True}, {"causal": False, "window_left": 2}):
            wrapper.plan(starts(rows), starts(keys), 4, 2, 32, 16, **given, **F32)
            got, first, first_k = wrapper.run(q, k, v, return_lse=True), 0, 0
            for n, m in zip(rows, keys):
                here, there = slice(first, first + n), slice(first_k, first_k + m)
                self.close([t[here] for t in got], attention(q[here], k[there], v[there], **given))
                first, first_k = first + n, first_k + m
        with self.assertRaisesRegex(attune.Error, "q has 11 rows; plan.. was given 12"):
            wrapper.run(q[:11], k, v)

    def test_decode(self):
        lengths = [37, 1, 20]
        batch = Batch(lengths, 8)
        for per in (1, 3):
            wrapper = fi.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
            q = torch.randn(3 * per, 4, 32)
            for given in ({}, {"window_left": 4}):
                wrapper.plan(*batch.lists, 4, 2, 32, 8, q_len_per_req=per, **given, **F32)
                self.close(wrapper.run(q, batch.pages, return_lse=True),
                           batch.each(q, [per] * 3, causal=True, **given))
                fi.fast_decode_plan(wrapper, *batch.lists, 4, 2, 32, 8, q_len_per_req=per, **given, **F32,
                                    global_override_indptr_cpu=batch.indptr)
                self.close(wrapper.run(q, batch.pages, return_lse=True),
                           batch.each(q, [per] * 3, causal=True, **given))
        fi.fast_decode_plan(wrapper, *batch.lists, 4, 2, 32, 8, "NONE", 4, 1.5, torch.float32, torch.float32,
                            torch.float16, 0.3, None, None, False, None, False, 3)  # in FlashInfer's order
        self.close(wrapper.run(q, batch.pages, return_lse=True),
                   batch.each(q, [3] * 3, causal=True, window_left=4, softcap=1.5, scale=0.3))
        for encoding in ("ROPE_LLAMA", "ALIBI"):
            wrapper.plan(*batch.lists, 4, 2, 32, 8, pos_encoding_mode=encoding, **F32)
            got = wrapper.run(q[:3], batch.pages, return_lse=True)
            for n in range(3):
                k, v = batch.keys(n)
                wanted = fi.single_decode_with_kv_cache(q[n], k, v, pos_encoding_mode=encoding, return_lse=True)
                torch.testing.assert_close((got[0][n], got[1][n]), wanted, rtol=1e-5, atol=1e-5)

    def test_one_request(self):
        q, k, v = torch.randn(5, 4, 32), torch.randn(9, 2, 32), torch.randn(9, 2, 32)
        for given in ({}, {"causal": True}, {"window_left": 1, "causal": True}):
            for layout in ("NHD", "HND"):
                keys = (k, v) if layout == "NHD" else (k.transpose(0, 1), v.transpose(0, 1))
                got = fi.single_prefill_with_kv_cache(q, *keys, kv_layout=layout, return_lse=True, **given)
                self.close(got, attention(q, k, v, **given))
        seen = torch.rand(5, 9) < 0.5
        seen[2] = False  # a query that sees no key
        packed = fi.packbits(seen.flatten(), "little")
        for mask in ({"custom_mask": seen}, {"packed_custom_mask": packed}):
            self.close(fi.single_prefill_with_kv_cache(q, k, v, return_lse=True, **mask),
                       attention(q, k, v, seen=seen))
        self.close([fi.single_prefill_with_kv_cache(q, k, v, causal=True, pos_encoding_mode="ROPE_LLAMA")],
                   attention(rotated(q, 4), rotated(k, 0), v, causal=True))
        out, lse = fi.single_decode_with_kv_cache(q[0], k, v, logits_soft_cap=2.0, sm_scale=0.3, return_lse=True)
        wanted = attention(q[:1], k, v, softcap=2.0, scale=0.3)
        self.close((out, lse), (wanted[0][0], wanted[1][0]))
        self.close([fi.single_decode_with_kv_cache(q[0], k, v, k_scale=2.0, v_scale=3.0)],
                   [3 * attention(q[:1], k, v, scale=2 * 32 ** -0.5)[0][0]])

    def test_states_join_to_attention_over_all_keys(self):
        q, k, v = torch.randn(3, 4, 32), torch.randn(12, 2, 32), torch.randn(12, 2, 32)
        parts = [fi.single_prefill_with_kv_cache(q, k[a:b], v[a:b], return_lse=True)
                 for a, b in ((0, 5), (5, 6), (6, 12))]
        wanted = attention(q, k, v)
        values, sums = (torch.stack(t, 1) for t in zip(*parts))
        self.close(fi.merge_states(values, sums), wanted)
        joined = fi.merge_state(*fi.merge_state(*parts[0], *parts[1]), *parts[2])
        self.close(joined, wanted)
        nothing = torch.zeros_like(values[:, 0]), torch.full_like(sums[:, 0], -torch.inf)
        torch.testing.assert_close(fi.merge_state(*parts[0], *nothing), parts[0])
        self.assertEqual([t.isnan().any().item() for t in fi.merge_state(*nothing, *nothing)], [False, False])
        value, total = (t.clone() for t in parts[0])
        fi.merge_state_in_place(value, total, *parts[1], mask=torch.tensor([True, False, True]))
        both = fi.merge_state(*parts[0], *parts[1])
        self.assertTrue(torch.equal(value[1], parts[0][0][1]) and torch.equal(total[1], parts[0][1][1]))
        torch.testing.assert_close((value[::2], total[::2]), (both[0][::2], both[1][::2]))

    def test_a_shared_prefix(self):
        prefix, own = [16], [5, 9]
        batch = Batch(prefix + own, 8)
        q = torch.randn(4, 4, 32)
        wrapper = fi.MultiLevelCascadeAttentionWrapper(2, WORKSPACE)
        wrapper.plan([starts([4]), starts([2, 2])], [batch.indptr[:2], batch.indptr[1:] - batch.indptr[1]],
                     [batch.indices, batch.indices[batch.indptr[1]:]], [batch.last[:1], batch.last[1:]], 4, 2, 32, 8,
                     causal=True, **F32)
        got = wrapper.run(q, batch.pages)
        shared = list(batch.keys(0))
        for n in (0, 1):
            k, v = (torch.cat([a, b]) for a, b in zip(shared, batch.keys(n + 1)))
            self.close([got[2 * n:2 * n + 2]], attention(q[2 * n:2 * n + 2], k, v, causal=True))
        with self.assertRaisesRegex(attune.Error, "are given, and there are 2"):
            wrapper.plan([starts([4])], [], [], [], 4, 2, 32, 8)

    def test_appended_rows_are_the_last_keys(self):
        for layout in ("NHD", "HND"):
            batch, new = Batch([19, 3, 8], 8), [4, 1, 8]
            k, v = torch.randn(14, 2, 32), torch.randn(14, 2, 32)
            request, place = fi.get_batch_indices_positions(
                starts(new), fi.get_seq_lens(batch.indptr, batch.last, 8), 14)
            self.assertEqual(request.tolist(), [0] * 4 + [1] + [2] * 8 + [-1])
            self.assertEqual(place[:13].tolist(), [15, 16, 17, 18, 2, *range(8)])
            before = batch.pages.clone()
            cache = batch.pages if layout == "NHD" else batch.pages.transpose(2, 3).contiguous()
            indptr, indices, last = batch.lists
            fi.append_paged_kv_cache(k, v, request, place, cache, indices, indptr, last, layout)
            if layout == "HND":
                batch.pages = cache.transpose(2, 3)
            first = 0
            for n, count in enumerate(new):
                for part, given in zip(batch.keys(n), (k, v)):
                    self.assertTrue(torch.equal(part[len(part) - count:], given[first:first + count]))
                first += count
            self.assertEqual((batch.pages != before).flatten(3).any(-1).sum().item(), 2 * 13)
        fi.append_paged_kv_cache(k[:1], v[:1], torch.tensor([-1]), torch.tensor([0]), before, indices, indptr, last)
        with self.assertRaisesRegex(attune.Error, "position 24 of request 0 is not in its pages"):
            fi.append_paged_kv_cache(k[:1], v[:1], torch.tensor([0]), torch.tensor([24]), before, indices, indptr, last)
        with self.assertRaisesRegex(attune.Error, "k is torch.float16, and the cache is torch.float32"):
            fi.append_paged_kv_cache(k[:1].half(), v[:1], request[:1], place[:1], before, indices, indptr, last)


class Example(unittest.TestCase):
    def test_a_decode_loop(self):
        self.assertLess(example("serve_pages").serve(18), 1e-5)


class Graphs(Case):
    """On a CPU nothing is captured; what a capture needs is that plans write into the same memory."""

    def test_plans_keep_their_memory(self):
        buffers = {"qo_indptr_buf": torch.zeros(4, dtype=torch.int32),
                   "paged_kv_indices_buf": torch.zeros(24, dtype=torch.int32)}
        wrapper = fi.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE, use_cuda_graph=True, **buffers)
        self.assertTrue(wrapper.is_cuda_graph_enabled)
        q, places = torch.randn(9, 4, 32), set()
        for lengths, rows in (([20, 9, 30], [4, 1, 4]), ([8, 8, 60], [1, 1, 1]), ([0, 1, 64], [2, 0, 3])):
            batch = Batch(lengths, 8)
            wrapper.plan(starts(rows), *batch.lists, 4, 2, 32, 8, causal=True, **F32)
            plan = wrapper._plan
            places.add((plan.lengths, *(t.data_ptr() for t in plan.tensors.values())))
            got = wrapper.run(q, batch.pages, return_lse=True)
            self.close([t[:sum(rows)] for t in got], batch.each(q, rows, causal=True))
            self.assertEqual(got[0][sum(rows):].abs().sum().item(), 0)
        self.assertEqual(len(places), 1)
        for given, message in (((Batch([8] * 2, 8), [1, 1]), "the batch of a graph cannot change"),
                               ((Batch([8, 8, 200], 8), [1, 1, 1]), "has 25 pages, and the graph keeps a table of 24"),
                               ((Batch([8, 8, 8], 8), [5, 5, 5]), "the graph's first plan.. had 9")):
            with self.assertRaisesRegex(attune.Error, message):
                wrapper.plan(starts(given[1]), *given[0].lists, 4, 2, 32, 8, **F32)

    def test_decode_and_packed_keys(self):
        empty = torch.zeros(16, dtype=torch.int32)
        wrapper = fi.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(WORKSPACE, empty[:3], empty, empty[:2])
        q, places = torch.randn(2, 4, 32), set()
        for lengths in ([20, 9], [64, 1]):
            batch = Batch(lengths, 8)
            wrapper.plan(*batch.lists, 4, 2, 32, 8, **F32)
            places.add((wrapper._plan.lengths, *(t.data_ptr() for t in wrapper._plan.tensors.values())))
            self.close(wrapper.run(q, batch.pages, return_lse=True), batch.each(q, [1, 1]))
        self.assertEqual(len(places), 1)
        ragged = fi.BatchPrefillWithRaggedKVCacheWrapper(WORKSPACE, use_cuda_graph=True)
        k = torch.randn(9, 2, 32)
        for rows, keys in (([2, 3], [4, 5]), ([1, 3], [6, 3])):
            ragged.plan(starts(rows), starts(keys), 4, 2, 32, **F32)
            got = ragged.run(torch.randn(5, 4, 32), k, k)
        self.assertEqual(got[4].abs().sum().item(), 0)
        for options in ({"pos_encoding_mode": "ALIBI"}, {"pos_encoding_mode": "ROPE_LLAMA"},
                        {"kv_data_type": torch.float8_e5m2}):
            with self.assertRaisesRegex(attune.Error, "use_cuda_graph is served without"):
                wrapper.plan(*batch.lists, 4, 2, 32, 8, **F32, **options)
        with self.assertRaisesRegex(attune.Error, "use_cuda_graph needs paged_kv_indices_buf"):
            fi.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE, use_cuda_graph=True).plan(*batch.lists, 4, 2, 32, 8)


class Compiled(Case):
    def test_one_graph_serves_later_plans(self):
        wrapper = fi.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
        pre = fi.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE)
        new, slots = torch.randn(2, 2, 32), torch.tensor([0, 1], dtype=torch.int32)

        def step(q, pages, indptr, indices, last, place):
            fi.append_paged_kv_cache(new, new, slots, place, pages, indices, indptr, last)
            a = wrapper.run(q * 1.0, pages, return_lse=True)
            b = pre.run(q, (pages[:, 0], pages[:, 1]), return_lse=True, k_scale=2.0)
            return fi.merge_state(*a, *b)

        compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
        q = torch.randn(2, 4, 32)
        for lengths in ([20, 9], [33, 2]):
            batch = Batch(lengths, 8)
            wrapper.plan(*batch.lists, 4, 2, 32, 8, **F32)
            pre.plan(starts([1, 1]), *batch.lists, 4, 2, 32, 8, causal=True, **F32)
            place = torch.tensor(lengths) - 1
            pages = batch.pages.clone()
            got = compiled(q, pages, *batch.lists, place)
            wanted = step(q, batch.pages, *batch.lists, place)
            torch.testing.assert_close(got, wanted)
            self.assertTrue(torch.equal(pages, batch.pages))

    def test_functions_of_one_request_and_packed_keys(self):
        q, k = torch.randn(5, 4, 32), torch.randn(9, 2, 32)
        wrapper = fi.BatchPrefillWithRaggedKVCacheWrapper(WORKSPACE)
        wrapper.plan(starts([2, 3]), starts([4, 5]), 4, 2, 32, causal=True, pos_encoding_mode="ROPE_LLAMA", **F32)
        for run in (lambda q, k: wrapper.run(q, k, k, return_lse=True),
                    lambda q, k: fi.single_prefill_with_kv_cache(q, k, k, causal=True, pos_encoding_mode="ALIBI"),
                    lambda q, k: fi.single_decode_with_kv_cache(q[0], k, k, return_lse=True)):
            torch.testing.assert_close(torch.compile(run, fullgraph=True, backend="aot_eager")(q, k), run(q, k))


class Refused(Case):
    def test_what_changes_the_mathematics_is_served_or_refused(self):
        batch, q = Batch([9, 4], 8), torch.randn(2, 4, 32)
        wrapper = fi.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE)
        decode = fi.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE)
        given = (starts([1, 1]), *batch.lists, 4, 2, 32, 8)
        with self.assertRaisesRegex(attune.Error, "run.. comes before plan"):
            wrapper.run(q, batch.pages)
        some = torch.zeros(2, dtype=torch.int32)
        for options, message in (
                ({"prefix_len_ptr": some}, "prefix_len_ptr is given, and attune does not serve it"),
                ({"token_pos_in_items_ptr": some}, "token_pos_in_items_ptr is given"),
                ({"max_item_len_ptr": some}, "max_item_len_ptr is given"),
                ({"pos_encoding_mode": "ROPE"}, "'ROPE' is not one of NONE, ROPE_LLAMA, ALIBI"),
                ({"pos_encoding_mode": "ALIBI", "logits_soft_cap": 3.0}, "ALIBI with logits_soft_cap"),
                ({"pos_encoding_mode": "ALIBI", "window_left": 3}, "served with causal=True alone"),
                ({"q_data_type": "float8_e4m3fn"}, "q is torch.float8_e4m3fn; accepted are"),
                ({"kv_data_type": "bfloat16"}, "keys are torch.bfloat16 and q is torch.float16"),
                ({"o_data_type": "bfloat16"}, "o_data_type is torch.bfloat16"),
                ({"q_data_type": "half a float"}, "'half a float' is not a dtype"),
                ({"seq_lens": torch.tensor([99, 1]), "block_tables": batch.table()}, "has 99 keys, and block_tables")):
            with self.assertRaisesRegex(attune.Error, message):
                wrapper.plan(*given, **options)
        for bad, message in (((starts([1]), *given[1:]), "qo_indptr has 1 requests, and the pages have 2"),
                             ((given[0] + 1, *given[1:]), "qo_indptr does not begin with 0"),
                             ((given[0], *given[1:3], given[3] + 8, *given[4:]), "request 0 has 9 keys in its last"),
                             ((given[0], given[1], given[2][:2], *given[3:]), "has 2 pages, and paged_kv_indptr names"),
                             ((*given[:4], 3, *given[5:]), "3 heads of queries are not a multiple of 2")):
            with self.assertRaisesRegex(attune.Error, message):
                wrapper.plan(*bad)
        with self.assertRaisesRegex(attune.Error, "window_right 3 is not served"):
            decode.plan(*batch.lists, 4, 2, 32, 8, window_right=3)
        for given_causal, per in ((True, 1), (False, 2)):
            with self.assertRaisesRegex(attune.Error, f"is_causal {given_causal} with q_len_per_req {per} is not"):
                decode.plan(*batch.lists, 4, 2, 32, 8, q_len_per_req=per, is_causal=given_causal)
        wrapper.plan(*given, **F32)
        decode.plan(*batch.lists, 4, 2, 32, 8, **F32)
        for options, message in (({"kv_cache_sf": some}, "kv_cache_sf is given"),
                                 ({"skip_softmax_threshold_scale_factor": 1.0}, "skip_softmax_threshold_scale_factor")):
            for run in (wrapper.run, decode.run):
                with self.assertRaisesRegex(attune.Error, message):
                    run(q, batch.pages, **options)
        with self.assertRaisesRegex(attune.Error, "args of a custom kernel is given"):
            wrapper.run(q, batch.pages, some)
        with self.assertRaisesRegex(attune.Error, "q is torch.float16 and keys are torch.float32; plan"):
            wrapper.run(q.half(), batch.pages)
        with self.assertRaisesRegex(attune.Error, "q_len_per_req is 2, and plan.. was given 1"):
            decode.run(q, batch.pages, q_len_per_req=2)
        with self.assertRaisesRegex(attune.Error, r"paged_kv_cache is \[.*\]; accepted are \[page, 2"):
            wrapper.run(q, batch.pages[:, 0])
        with self.assertRaisesRegex(attune.Error, "pages have 8 rows; plan.. was given page_size 4"):
            decode.plan(*batch.lists[:2], batch.last.clamp(max=4), 4, 2, 32, 4, is_causal=False, **F32)
            decode.run(q, batch.pages)
        decode.plan(*batch.lists, 4, 2, 32, 8, **F32)
        with self.assertRaisesRegex(attune.Error, "out is"):
            wrapper.run(q, batch.pages, out=q[:1])
        with self.assertRaisesRegex(attune.Error, "jit_args is given"):
            fi.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE, jit_args=[1])
        with self.assertRaisesRegex(attune.Error, "jit_args is given"):
            fi.BatchPrefillWithPagedKVCacheWrapper(WORKSPACE, variant_owns_mask=True)
        with self.assertRaisesRegex(attune.Error, "kv_layout 'DNH' is not one of NHD, HND"):
            fi.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE, "DNH")
        with self.assertRaisesRegex(attune.Error, "backend 'mine' is not one of auto"):
            fi.BatchDecodeWithPagedKVCacheWrapper(WORKSPACE, backend="mine")
        with self.assertRaisesRegex(attune.Error, "scale_k and k_scale are both given"):
            fi.single_prefill_with_kv_cache(q, *batch.keys(0), scale_k=1.0, k_scale=1.0)
        with self.assertRaisesRegex(attune.Error, "s is torch.float16"):
            fi.merge_states(torch.zeros(1, 2, 4, 32), torch.zeros(1, 2, 4).half())


class Alias(unittest.TestCase):
    def test_flashinfer_is_attune_between_install_and_uninstall(self):
        before = sys.modules.get("flashinfer")
        fi.install()
        try:
            scope: dict = {}
            exec("import flashinfer, flashinfer.decode\n"
                 "from flashinfer.prefill import BatchPrefillWithPagedKVCacheWrapper\n", scope)
            self.assertIs(scope["flashinfer"], fi)
        finally:
            fi.uninstall()
        self.assertIs(sys.modules.get("flashinfer"), before)


if __name__ == "__main__":
    unittest.main()
