# SPDX-License-Identifier: Apache-2.0
"""attune.Cache and attune.NsaCache: prefill, chunks and single tokens through one object equal one attention."""

from __future__ import annotations

import unittest

import attune

try:
    import numpy as np
except ImportError:
    raise unittest.SkipTest("NumPy is not here")

import reference

NSA = "nsa d=4 gate=sigmoid l=8 n=3 phi=mean s=8 w=6"


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


class Caches(unittest.TestCase):
    def near(self, got, wanted, tolerance=3e-6):
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)

    def test_a_prompt_and_single_tokens_attend_to_all_that_came_before(self):
        q, k, v = draw(2, 9, 4, 8), draw(2, 9, 2, 8, seed=1), draw(2, 9, 2, 16, seed=2)
        for page in (0, 4):
            with self.subTest(page=page):
                cache = attune.Cache(heads=2, dim=8, dim_v=16, sequences=3, capacity=12, page=page)
                order = [2, 0]  # q's first sequence is the cache's third
                for begin, end in ((0, 5), (5, 6), (6, 9)):
                    part = slice(begin, end)
                    out, lse = cache.attend(q[:, part], k[:, part], v[:, part], sequences=order, causal=True,
                                            return_lse=True)
                    for b in range(2):
                        seen = reference.visible(end - begin, end, True)
                        wanted, wanted_lse = reference.attention(q[b, part], k[b, :end], v[b, :end], seen=seen)
                        self.near(out[b], wanted)
                        self.near(lse[b], wanted_lse)
                self.assertEqual([cache.length(n) for n in range(3)], [9, 0, 9])

    def test_packed_queries_and_rows_in_no_sequence(self):
        q, k, v = draw(6, 4, 8), draw(2, 5, 2, 8, seed=1), draw(2, 5, 2, 8, seed=2)
        cache = attune.Cache(heads=2, dim=8, sequences=2, capacity=6)
        cache.append(k, v)
        out, lse = cache.attend(q, layout="thd", cu_q=np.array([0, 1, 4], "int32"), max_q=3, causal=True,
                                return_lse=True)
        for b, rows in enumerate((slice(0, 1), slice(1, 4))):
            seen = reference.visible(rows.stop - rows.start, 5, True)
            wanted, wanted_lse = reference.attention(q[rows], k[b], v[b], seen=seen)
            self.near(out[rows], wanted)
            self.near(lse[:, rows], wanted_lse)
        self.assertEqual((np.abs(out[4:]).max(), lse[:, 4:].max()), (0, -np.inf))

    def test_layouts_and_tensors_of_results_are_the_callers(self):
        q, k, v = draw(1, 4, 3, 8), draw(1, 2, 3, 8, seed=1), draw(1, 2, 3, 8, seed=2)
        cache = attune.Cache(heads=2, dim=8, sequences=1, capacity=4)
        out = np.full((1, 4, 3, 8), np.nan, "float32")
        self.assertIs(cache.attend(q, k, v, layout="bhsd", out=out), out)
        wanted, _ = reference.attention(*(t[0].swapaxes(0, 1) for t in (q, k, v)))
        self.near(out[0].swapaxes(0, 1), wanted)

    def test_memory_is_lent_and_rows_are_filled_by_hand(self):
        cache = attune.Cache(heads=2, dim=8, sequences=2, capacity=6)
        k, v = (np.from_dlpack(t) for t in (cache.k, cache.v))
        self.assertEqual(k.shape, (2, 6, 2, 8))
        q, rows_k, rows_v = draw(1, 1, 2, 8), draw(4, 2, 8, seed=1), draw(4, 2, 8, seed=2)
        cache.resize(1, 4)
        k[1, :4], v[1, :4] = rows_k, rows_v
        self.near(cache.attend(q, sequences=[1])[0], reference.attention(q[0], rows_k, rows_v)[0])
        del cache
        np.testing.assert_array_equal(k[1, :4], rows_k)  # the memory lives as long as the array

    def test_a_query_without_rows_only_appends(self):
        k, v, q = draw(2, 3, 2, 8), draw(2, 3, 2, 8, seed=1), draw(2, 1, 4, 8, seed=2)
        ends = np.zeros(3, "int32")
        wanted = attune.Cache(heads=2, dim=8, sequences=2, capacity=12)
        wanted.append(k, v)
        for page in (0, 4):
            for layout, shape, lse_shape, named in (
                    ("bshd", (2, 0, 4, 8), (2, 4, 0), {}), ("bshd", (2, 0, 4, 8), (2, 4, 0), {"causal": True}),
                    ("bhsd", (2, 4, 0, 8), (2, 4, 0), {}), ("thd", (0, 4, 8), (4, 0), {"cu_q": ends})):
                with self.subTest(page=page, layout=layout, **named):
                    cache = attune.Cache(heads=2, dim=8, sequences=2, capacity=12, page=page)
                    new = [t.swapaxes(1, 2) if layout == "bhsd" else t for t in (k, v)]
                    out, lse = cache.attend(draw(*shape), *new, layout=layout, return_lse=True, **named)
                    self.assertEqual((out.shape, lse.shape), (shape, lse_shape))
                    self.assertEqual([cache.length(n) for n in range(2)], [3, 3])
                    self.near(cache.attend(q), wanted.attend(q))
                    # Without new keys, nothing is appended either.
                    self.assertEqual(cache.attend(draw(*shape), layout=layout, **named).shape, shape)
                    self.assertEqual([cache.length(n) for n in range(2)], [3, 3])

    def test_an_append_alone_lengthens_and_a_shorter_sequence_gives_its_pages_back(self):
        cache = attune.Cache(heads=2, dim=8, sequences=2, capacity=8, page=2, pages=4)
        k, v = draw(1, 5, 2, 8), draw(1, 5, 2, 8, seed=1)
        cache.append(k, v, sequences=[1])
        self.assertEqual((cache.length(1), cache.free_pages), (5, 1))
        with self.assertRaisesRegex(attune.Error, "3 more pages are needed, but 1 of 4 are free"):
            cache.append(k, v, sequences=[0])
        cache.resize(1, 2)
        self.assertEqual((cache.length(1), cache.free_pages), (2, 3))
        cache.append(k, v, sequences=[0])
        self.assertEqual((cache.length(0), cache.free_pages), (5, 0))

    def test_a_fork_shares_keys_until_one_sequence_writes(self):
        k, v, new = draw(1, 5, 2, 8), draw(1, 5, 2, 8, seed=1), draw(1, 1, 2, 8, seed=2)
        for page in (0, 4):
            with self.subTest(page=page):
                cache = attune.Cache(heads=2, dim=8, sequences=3, capacity=8, page=page)
                free = cache.free_pages
                cache.append(k, v, sequences=[2])
                cache.fork(2, 0), cache.fork(2, 1, 3)
                self.assertEqual([cache.length(n) for n in range(3)], [5, 3, 5])
                self.assertEqual(cache.free_pages, free - 2 if page else 0)
                cache.append(new, new, sequences=[0])
                self.assertEqual(cache.free_pages, free - 3 if page else 0)  # a copy of the page that it writes to
                q = draw(1, 1, 4, 8, seed=3)
                for sequence, keys, values in ((2, k[0], v[0]), (1, k[0, :3], v[0, :3]),
                                               (0, np.concatenate((k[0], new[0])), np.concatenate((v[0], new[0])))):
                    self.near(cache.attend(q, sequences=[sequence])[0], reference.attention(q[0], keys, values)[0])
                with self.assertRaisesRegex(attune.Error, "sequence 1 has 3 keys; an empty sequence is accepted"):
                    cache.fork(2, 1)
                with self.assertRaisesRegex(attune.Error, "sequence 9 is not in 0 ... 2"):
                    cache.fork(9, 1)

    def test_what_is_wrong_is_refused_and_changes_nothing(self):
        cache = attune.Cache(heads=2, dim=8, sequences=2, capacity=3)
        q, k = draw(1, 2, 2, 8), draw(1, 2, 2, 8, seed=1)
        cache.attend(q, k, k)
        for sentence, call in (
                ("2 new keys do not fit in its 3", lambda: cache.attend(q, k, k)),
                ("sequence 7", lambda: cache.attend(q, k, k, sequences=[7])),
                ("sequence -4 is not in 0 ... 1", lambda: cache.attend(q, k, k, sequences=[-4])),
                (f"sequence {2**40} is not in 0 ... 1", lambda: cache.attend(q, k, k, sequences=[2**40])),
                (f"sequence {2**70} is not in 0 ... 1", lambda: cache.attend(q, k, k, sequences=[2**70])),
                (f"sequence {2**40} is not in 0 ... 1", lambda: cache.length(2**40)),
                (f"sequence {2**40} is not in 0 ... 1", lambda: cache.resize(2**40, 1)),
                (f"length {2**40} is not in 0 ... 3", lambda: cache.resize(0, 2**40)),
                (r"sequences \[0.5\] are not integers", lambda: cache.attend(q, k, k, sequences=[0.5])),
                ("sequences 1 are not integers", lambda: cache.attend(q, k, k, sequences=1)),
                ("2 sequences are named, and q has 1", lambda: cache.attend(q, k, k, sequences=[0, 1])),
                ("used_k given, but the cache provides it", lambda: cache.attend(q, k, k, used_k=np.array([1], "int32"))),
                ("v_new", lambda: cache.attend(q, k, sequences=[1])),
                ("k_new: <class 'list'> is not a tensor", lambda: cache.append(k.tolist(), k)),
                ("not one by name: 'reference'", lambda: cache.attend(q, k, k, sequences=[1], backend="reference")),
                ("length 4", lambda: cache.resize(0, 4)),
                ("k_new", lambda: cache.attend(q, draw(1, 1, 3, 8), draw(1, 1, 3, 8))),
                ("dim_qk = 0", lambda: attune.Cache(heads=2, dim=0, sequences=1, capacity=1)),
                ("dtype int8", lambda: attune.Cache(heads=2, dim=8, sequences=1, capacity=1, dtype="int8"))):
            with self.subTest(sentence), self.assertRaisesRegex(attune.Error, sentence):
                call()
        self.assertEqual([cache.length(n) for n in range(2)], [2, 0])
        with self.assertRaises(BufferError):
            cache.k.__dlpack__(copy=True)

    def test_tensors_of_pytorch_on_every_device(self):
        try:
            import torch
        except ImportError:
            self.skipTest("PyTorch is not here")
        for device in ["cpu"] + (["cuda:0"] if torch.cuda.is_available() else []):
            with self.subTest(device=device):
                q, k, v = (torch.randn(2, 7, 2, 16, device=device, dtype=torch.bfloat16) for _ in range(3))
                cache = attune.Cache(heads=2, dim=16, sequences=2, capacity=8, page=4, dtype=torch.bfloat16,
                                     device=device)
                parts = [cache.attend(*(t[:, a:b] for t in (q, k, v)), causal=True) for a, b in ((0, 6), (6, 7))]
                wanted = attune.attend(q, k, v, causal=True)
                torch.testing.assert_close(torch.cat(parts, 1), wanted, rtol=2e-2, atol=2e-2)
                lent = torch.from_dlpack(cache.k)
                self.assertEqual((lent.device.type, tuple(lent.shape)), (device[:4].rstrip(":"), (4, 4, 2, 16)))
                with self.assertRaisesRegex(attune.Error, "no gradient"):
                    cache.attend(q[:, :1].clone().requires_grad_())


class NsaCaches(unittest.TestCase):
    def streams(self, tokens, batch=1):
        return [draw(batch, tokens, 1, 8, seed=n) for n in range(6)]

    def whole(self, q, streams, gates):
        k, v, *others = streams
        return attune.attend(q, k, v, causal=True, variant=NSA, variant_tensors={**dict(enumerate(others)), 4: gates})

    def test_chunks_and_single_tokens_are_the_prefill_of_the_whole(self):
        tokens = 27
        q, gates, streams = draw(1, tokens, 2, 8, seed=9), draw(1, tokens, 2, 3, seed=8), self.streams(tokens)
        wanted = self.whole(q, streams, gates)
        cache = attune.NsaCache(NSA, heads=1, dim=8, sequences=2, capacity=32)
        for begin, end in ((0, 11), (11, 24), (24, 25), (25, 27)):
            part = slice(begin, end)
            out = cache.attend(q[:, part], *(t[:, part] for t in streams), gates=gates[:, part].copy(), sequences=[1])
            np.testing.assert_allclose(out, wanted[:, part], rtol=1e-5, atol=1e-5)
        self.assertEqual((cache.length(1), cache.compressed(1), cache.length(0)), (27, 5, 0))
        np.testing.assert_array_equal(np.from_dlpack(cache.stream("k_select"))[1, :tokens], streams[2][0])

    def test_tokens_that_are_taken_back_were_never_there(self):
        tokens = 20
        q, gates, streams = draw(1, tokens, 2, 8, seed=9), draw(1, tokens, 2, 3, seed=8), self.streams(tokens)
        cache = attune.NsaCache(NSA, heads=1, dim=8, sequences=1, capacity=32)
        cache.attend(None, *(t[:, :15] for t in streams))
        cache.attend(None, *(2 * t[:, :9] for t in streams))
        cache.shorten(0, 15)
        out = cache.attend(q[:, 15:], *(t[:, 15:] for t in streams), gates=gates[:, 15:].copy())
        np.testing.assert_allclose(out, self.whole(q, streams, gates)[:, 15:], rtol=1e-5, atol=1e-5)

    def test_what_is_wrong_is_refused_and_changes_nothing(self):
        cache = attune.NsaCache(NSA, heads=1, dim=8, sequences=1, capacity=8)
        new = self.streams(5)
        cache.attend(None, *new)
        for sentence, call in (
                ("do not fit in 8", lambda: cache.attend(None, *new)),
                ("give all or none", lambda: cache.attend(None, *new[:4])),
                ("neither q nor new tokens", lambda: cache.attend(None)),
                ("weights 3 is not a number of phi's, 5 ... 14", lambda: cache.attend(None, *new, weights={3: new[0]})),
                ("weights 15 is not", lambda: cache.attend(None, *new, weights={5: new[0], 15: new[0]})),
                ("weights 'w1' is not", lambda: cache.attend(None, *new, weights={"w1": new[0]})),
                (f"sequence {2**40} is not in 0 ... 0", lambda: cache.attend(None, *new, sequences=[2**40])),
                (f"sequence {2**40} is not in 0 ... 0", lambda: cache.length(2**40)),
                (f"sequence {2**40} is not in 0 ... 0", lambda: cache.compressed(2**40)),
                (f"sequence {2**40} is not in 0 ... 0", lambda: cache.shorten(2**40, 0)),
                (f"length {2**40} is not in 0 ... 8", lambda: cache.shorten(0, 2**40)),
                ("stream 'x'", lambda: cache.stream("x")),
                ("is not nsa", lambda: attune.NsaCache("gate act=none", heads=1, dim=8, sequences=1,
                                                                capacity=8))):
            with self.subTest(sentence), self.assertRaisesRegex(attune.Error, sentence):
                call()
        self.assertEqual(cache.length(0), 5)


if __name__ == "__main__":
    unittest.main()
