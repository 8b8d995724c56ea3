# SPDX-License-Identifier: Apache-2.0
"""attune.attend over NumPy: layouts, strides, lengths, caches, and refusals."""

from __future__ import annotations

import contextlib
import unittest

import attune
from attune import _attend

try:
    import numpy as np
except ImportError:
    np = None
if np is not None:
    import reference


def draw(*shape, seed=0, dtype="float32"):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@contextlib.contextmanager
def made_of(number):
    """Fills arrays that attend allocates with `number`, so that unwritten elements show."""
    original = _attend.empty

    def filled(*given):
        made = original(*given)
        made[...] = number
        return made

    _attend.empty = filled
    try:
        yield
    finally:
        _attend.empty = original


class WithoutArrays(unittest.TestCase):
    def test_a_plan_says_its_backend_and_why(self):
        plan = attune.plan("forward f32 b1 h1 q8 k8 d16 full")
        self.assertEqual(plan.backend, "cpu_forward")
        self.assertIn("cpu_forward", plan.why)

    def test_a_bad_line_is_an_error_with_the_librarys_sentence(self):
        with self.assertRaisesRegex(attune.Error, "problem line"):
            attune.plan("forward f32 nonsense")

    def test_a_sentence_that_is_cut_or_quotes_no_utf_8_is_still_a_sentence(self):
        with self.assertRaisesRegex(attune.Error, "é\\.\\.\\."):
            attune.plan("x" + "é" * 40)
        with self.assertRaisesRegex(attune.Error, "No such file"):
            attune.Module(attune.make("multihead", len=8, heads=1, embed=16).line).load(b"/tmp/\xff")

    def test_an_error_is_what_frameworks_raise(self):
        self.assertTrue(issubclass(attune.Error, ValueError) and issubclass(attune.Error, RuntimeError))

    def test_what_is_no_tensor_is_named(self):
        with self.assertRaisesRegex(attune.Error, "q: <class 'object'> is not a tensor"):
            attune.attend(object(), object(), object(), out=object())

    def test_threads_can_be_set(self):
        before = attune.threads()
        attune.set_threads(1)
        self.assertEqual(attune.threads(), 1)
        attune.set_threads(before)


@unittest.skipIf(np is None, "NumPy is not here")
class Attend(unittest.TestCase):
    def near(self, got, wanted, tolerance=3e-6):
        np.testing.assert_allclose(np.asarray(got, np.float64), wanted, rtol=tolerance * 30, atol=tolerance)

    def test_every_mask_is_what_the_definition_says(self):
        q, k, v = draw(2, 9, 4, 16), draw(2, 13, 2, 16, seed=1), draw(2, 13, 2, 8, seed=2)
        for causal, window, align in ((False, None, "bottom_right"), (True, None, "bottom_right"),
                                      (True, None, "top_left"), (False, (3, 2), "bottom_right"),
                                      (True, (4, -1), "bottom_right"), (False, (-1, 1), "top_left"),
                                      (False, (2, 0), "bottom_right")):
            with self.subTest(causal=causal, window=window, align=align):
                out, lse = attune.attend(q, k, v, causal=causal, window=window, align=align, return_lse=True)
                seen = reference.visible(9, 13, causal, window or (-1, -1), align == "top_left")
                for b in range(2):
                    wanted, wanted_lse = reference.attention(q[b], k[b], v[b], seen=seen)
                    self.near(out[b], wanted)
                    self.near(lse[b], wanted_lse)

    def test_layout_names_the_axes(self):
        q, k, v = draw(2, 5, 3, 8), draw(2, 5, 3, 8, seed=1), draw(2, 5, 3, 8, seed=2)
        wanted = attune.attend(q, k, v)
        turned = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (q, k, v)]
        self.near(attune.attend(*turned, layout="bhsd").transpose(0, 2, 1, 3), wanted, 0)

    def test_strided_views_are_read_in_place(self):
        qkv = draw(2, 7, 3, 4, 16)
        q, k, v = (qkv[:, :, n] for n in range(3))
        self.near(attune.attend(q, k, v), attune.attend(q.copy(), k.copy(), v.copy()), 0)

    def test_out_and_lse_are_written_where_they_are_given(self):
        q, k, v = draw(1, 4, 2, 8), draw(1, 4, 2, 8, seed=1), draw(1, 4, 2, 8, seed=2)
        whole = np.zeros((1, 6, 2, 8), "float32")
        lse = np.empty((1, 2, 4), "float32")
        out, same = attune.attend(q, k, v, out=whole[:, 1:5], lse=lse, return_lse=True)
        self.near(whole[:, 1:5], attune.attend(q, k, v), 0)
        self.assertIs(same, lse)
        self.assertEqual(np.abs(whole[:, ::5]).max(), 0)

    def test_packed_sequences_do_not_see_each_other(self):
        q, k, v = draw(10, 2, 8), draw(12, 2, 8, seed=1), draw(12, 2, 8, seed=2)
        cu_q, cu_k = np.array([0, 3, 10], "int32"), np.array([0, 7, 12], "int32")
        out, lse = attune.attend(q, k, v, layout="thd", causal=True, cu_q=cu_q, cu_k=cu_k, max_q=7, max_k=7,
                                 return_lse=True)
        for b in range(2):
            rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
            seen = reference.visible(rows.stop - rows.start, keys.stop - keys.start, True)
            wanted, wanted_lse = reference.attention(q[rows], k[keys], v[keys], seen=seen)
            self.near(out[rows], wanted)
            self.near(lse[:, rows], wanted_lse)

    def test_a_paged_cache_is_read_by_its_table_and_appended_to(self):
        page, used = 4, np.array([5, 9], "int32")
        pool_k, pool_v = draw(8, page, 2, 8, seed=1), draw(8, page, 2, 8, seed=2)
        table = np.array([[6, 1, 3], [0, 5, 7]], "int32")
        q, new_k, new_v = draw(2, 2, 4, 8), draw(2, 2, 2, 8, seed=3), draw(2, 2, 2, 8, seed=4)
        before = pool_k.copy()
        out = attune.attend(q, pool_k, pool_v, causal=True, page_table=table, used_k=used, k_new=new_k, v_new=new_v)
        for b in range(2):
            k, v = (np.concatenate([pool[p] for p in table[b]])[:used[b] + 2] for pool in (pool_k, pool_v))
            np.testing.assert_array_equal(k[used[b]:], new_k[b])
            wanted, _ = reference.attention(q[b], k, v, seen=reference.visible(2, used[b] + 2, True))
            self.near(out[b], wanted)
        np.testing.assert_array_equal(pool_k[2], before[2])

    def test_options_of_scores(self):
        q, k, v = draw(1, 6, 2, 8), draw(1, 8, 2, 8, seed=1), draw(1, 8, 2, 8, seed=2)
        slopes, bias = np.array([0.5, 0.25], "float32"), draw(1, 2, 6, 8, seed=3)
        for options in ({"softcap": 2.0}, {"slopes": slopes}, {"bias": bias}):
            with self.subTest(**{name: 1 for name in options}):
                named = {"bias": bias[0]} if "bias" in options else options
                self.near(attune.attend(q, k, v, scale=0.7, **options)[0],
                          reference.attention(q[0], k[0], v[0], scale=0.7, **named)[0])

    def test_the_backward_is_the_slope_of_the_forward(self):
        q, k, v, d = (draw(1, 4, 2, 8, seed=n, dtype="float64") for n in range(4))
        named = dict(causal=True, backend="reference")
        out, lse = attune.attend(q, k, v, return_lse=True, **named)
        dq, dk, dv = attune.attend_backward(d, q, k, v, out, lse, **named)
        step = 1e-6
        for x, gradient in ((q, dq), (k, dk), (v, dv)):
            for at in ((0, 1, 0, 3), (0, 2, 1, 5)):
                moved = x.copy()
                moved[at] += step
                ahead = attune.attend(*(moved if y is x else y for y in (q, k, v)), **named)
                self.assertAlmostEqual(((ahead - out) * d).sum() / step, gradient[at], places=4)

    def test_a_flag_of_numpy_is_one(self):
        q = draw(1, 4, 2, 8)
        assert np.array_equal(attune.attend(q, q, q, causal=q.size > np.int64(1)), attune.attend(q, q, q, causal=True))

    def test_what_is_wrong_is_refused_in_words(self):
        q, k, v = draw(2, 4, 2, 8), draw(2, 4, 2, 8, seed=1), draw(2, 4, 2, 8, seed=2)
        for what, sentence, call in (
                ("layout", "layout 'sbhd' is not one of", lambda: attune.attend(q, k, v, layout="sbhd")),
                ("axes", "q has 3 axes, and layout 'bshd' has 4", lambda: attune.attend(q[0], k, v)),
                ("list", "q: <class 'list'> is not a tensor", lambda: attune.attend(q.tolist(), k, v)),
                ("list of k", "k: <class 'list'> is not a tensor", lambda: attune.attend(q, k.tolist(), v)),
                ("list of v", "v: <class 'list'> is not a tensor", lambda: attune.attend(q, k, v.tolist())),
                ("number", "v: <class 'numpy.float32'> is not a tensor", lambda: attune.attend(q, k, v[0, 0, 0, 0])),
                ("list in a backward", "v: <class 'list'> is not a tensor",
                 lambda: attune.attend_backward(q, q, k, v.tolist(), q, q[..., 0])),
                ("batch", "k: batch = 1 is not 2", lambda: attune.attend(q, k[:1], v)),
                ("dtype", "must be the same", lambda: attune.attend(q, k.astype("float16"), v)),
                ("integers", "dtype of code 0", lambda: attune.attend(q.astype("int8"), k, v)),
                ("stride", "it must be 1", lambda: attune.attend(q[..., ::2], k[..., ::2], v)),
                ("window", "window 2 is not a pair of integers", lambda: attune.attend(q, k, v, window=2)),
                ("three", r"window \(1, 2, 3\) is not", lambda: attune.attend(q, k, v, window=(1, 2, 3))),
                ("none", r"window \(None, 0\) is not", lambda: attune.attend(q, k, v, window=(None, 0))),
                ("blocks", "block_size 64 is not a pair", lambda: attune.attend(q, k, v, block_size=64)),
                ("causal", "causal 'yes' is not True or False", lambda: attune.attend(q, k, v, causal="yes")),
                ("array", "causal array.* is not True or", lambda: attune.attend(q, k, v, causal=np.array([1, 0]))),
                ("rotary", "rotary_interleaved 2 is not", lambda: attune.attend(q, k, v, rotary_interleaved=2)),
                ("set", "align {'a'} is not one of", lambda: attune.attend(q, k, v, align={"a"})),
                ("variant", "variant 3 is not a string", lambda: attune.attend(q, k, v, variant=3)),
                ("no backend", "backend None is not a string", lambda: attune.attend(q, k, v, backend=None)),
                ("tensors", "variant_tensors: <class 'list'> is not a dict",
                 lambda: attune.attend(q, k, v, variant_tensors=[q])),
                ("packed", "needs cu_q", lambda: attune.attend(q[0], k[0], v[0], layout="thd")),
                ("lengths", "used_k", lambda: attune.attend(q, k, v, used_k=np.array([9, 1], "int32"))),
                ("dropout", "dropout needs seed", lambda: attune.attend(q, k, v, dropout=0.5)),
                ("backend", "backend 'none' is not one of", lambda: attune.attend(q, k, v, backend="none")),
                ("f64", "no backend supports", lambda: attune.attend(*(x.astype("float64") for x in (q, k, v))))):
            with self.subTest(what), self.assertRaisesRegex(attune.Error, sentence):
                call()

    def test_memory_that_is_read_only_is_read_and_not_written(self):
        q, k, v = draw(1, 4, 2, 8), draw(1, 4, 2, 8, seed=1), draw(1, 4, 2, 8, seed=2)
        wanted = attune.attend(q, k, v)
        for x in (q, k, v):
            x.flags.writeable = False
        self.near(attune.attend(q, k, v), wanted, 0)
        wanted.flags.writeable = False
        with self.assertRaisesRegex(attune.Error, "out: its memory is read-only"):
            attune.attend(q, k, v, out=wanted)

    def test_block_lists_of_a_mask_and_of_a_pattern_hide_what_they_do_not_list(self):
        q, k, v = draw(2, 32, 2, 8), draw(2, 40, 2, 8, seed=1), draw(2, 40, 2, 8, seed=2)
        mask = np.random.default_rng(5).random((2, 1, 4, 5)) < 0.6
        lists = attune.blocks(q, k, mask=mask, block=8)
        out = attune.attend(q, k, v, **lists.options())
        for b in range(2):
            seen = np.kron(mask[b, 0], np.ones((8, 8))) > 0
            self.near(out[b], reference.attention(q[b], k[b], v[b], seen=seen)[0])
        lists = attune.blocks(q, k, "local_window window=24", block=8, causal=True, by_head=True)
        out = attune.attend(q, k, v, causal=True, **lists.options())
        blocks = np.arange(40) // 8
        seen = (np.abs(blocks[8:, None] - blocks[None]) <= 1) & reference.visible(32, 40, True)
        self.near(out[0], reference.attention(q[0], k[0], v[0], seen=seen)[0])
        lists = attune.blocks(q, k, mask=mask[:1], block=8, causal=True, align="top_left")
        out = attune.attend(q, k, v, causal=True, align="top_left", **lists.options())
        seen = (np.kron(mask[0, 0], np.ones((8, 8))) > 0) & reference.visible(32, 40, True, top_left=True)
        self.near(out[0], reference.attention(q[0], k[0], v[0], seen=seen)[0])
        with self.assertRaisesRegex(attune.Error, "^attune: align 'absolute' is not one of bottom_right, top_left"):
            attune.blocks(q, k, mask=mask, block=8, align="absolute")
        for wrong in ({}, {"pattern": "dense", "mask": mask}, {"pattern": "nonsense"}):
            with self.assertRaises(attune.Error):
                attune.blocks(q, k, **wrong)
        for sentence, tensors in (("q: <class 'list'> is not a tensor", (q.tolist(), k)), ("k has 3 axes", (q, k[0]))):
            with self.subTest(sentence), self.assertRaisesRegex(attune.Error, sentence):
                attune.blocks(*tensors, "dense")

    def test_blocks_of_what_is_wrong_are_refused_in_words(self):
        q = draw(2, 16, 2, 8)
        for sentence, named in (
                ("block 0 is not an integer above 0, nor a pair of them", dict(pattern="dense", block=0)),
                (r"block \(4, 0\) is not", dict(pattern="dense", block=(4, 0))),
                (r"block \[4, 4, 4\] is not", dict(pattern="dense", block=[4, 4, 4])),
                ("block '4' is not", dict(pattern="dense", block="4")),
                ("pattern 3 is not a string", dict(pattern=3)),
                ("mask: <class 'list'> is not a tensor", dict(mask=[[True]], block=4)),
                (r"mask has 1 axes, and \[batch, head, rows, columns\] has 4", dict(mask=np.ones(4, bool), block=4))):
            with self.subTest(sentence), self.assertRaisesRegex(attune.Error, f"^attune: {sentence}"):
                attune.blocks(q, q, **named)
        self.assertEqual(attune.blocks(q, q, "dense", block=[4, 8]).block_size, (4, 8))

    def test_a_window_that_is_no_pair_is_not_taken_for_none(self):
        q = draw(1, 6, 2, 8)
        for window in (0, False, (), [], "", {}, np.array([1, 2]), [[1], 2], (3, -2), (-2, 0), (1.5, 2)):
            for options in ({}, {"softcap": 2.0}):
                with self.subTest(window=window, **options), self.assertRaisesRegex(
                        attune.Error, "^attune: window .* is not a pair of integers of -1 and more$"):
                    attune.attend(q, q, q, window=window, **options)
        self.near(attune.attend(q, q, q, window=(-1, -1)), attune.attend(q, q, q), 0)

    def test_a_list_is_as_good_as_a_pair(self):
        q = draw(1, 6, 2, 8)
        self.near(attune.attend(q, q, q, window=[2, 0]), attune.attend(q, q, q, window=(2, 0)), 0)

    def test_an_option_that_nobody_knows_is_a_type_error(self):
        q = draw(1, 4, 2, 8)
        with self.assertRaisesRegex(TypeError, "casual"):
            attune.attend(q, q, q, casual=True)

    def test_a_check_gives_the_problem_line_and_reads_values(self):
        q = draw(1, 4, 2, 8)
        self.assertEqual(attune.check(q, q, q, np.empty_like(q), causal=True), "forward f32 b1 h2 q4 k4 d8 causal")
        with self.assertRaisesRegex(attune.Error, "used_k"):
            attune.check(q, q, q, np.empty_like(q), used_k=np.array([5], "int32"))


    def test_of_no_query_or_no_key_there_is_nothing(self):
        for batch, rows, keys in ((0, 3, 4), (2, 0, 4), (2, 3, 0)):
            with self.subTest(batch=batch, rows=rows, keys=keys), made_of(7):
                q, k, v = draw(batch, rows, 4, 8), draw(batch, keys, 2, 8), draw(batch, keys, 2, 16)
                out, lse = attune.attend(q, k, v, return_lse=True)
                self.assertEqual((out.shape, lse.shape), ((batch, rows, 4, 16), (batch, 4, rows)))
                self.assertTrue((out == 0).all() and np.isneginf(lse).all())
                for t, gradient in zip((q, k, v), attune.attend_backward(out, q, k, v, out, lse)):
                    self.assertEqual(gradient.shape, t.shape)
                    self.assertTrue((gradient == 0).all())
                with self.assertRaises(attune.Error):
                    attune.attend(*(x.astype("int64") for x in (q, k, v)))
                with self.assertRaises(attune.Error):
                    attune.attend(q, k.astype("float16"), v)
                with self.assertRaises(attune.Error):
                    attune.attend(q, k, v, out=np.ones((batch, rows + 1, 4, 16), "float32"))

    def test_what_is_wrong_beside_nothing_is_refused_in_words(self):
        seed, used = np.array([1, 2]), np.array([2, 2], "int32")
        for batch, rows, keys in ((0, 3, 4), (2, 0, 4), (2, 3, 0)):
            q, k, v = draw(batch, rows, 4, 8), draw(batch, keys, 2, 8), draw(batch, keys, 2, 16)
            out, lse = attune.attend(q, k, v, return_lse=True)
            both = [lambda **named: attune.attend(q, k, v, **named),
                    lambda **named: attune.attend_backward(out, q, k, v, out, lse, **named)]
            for sentence, named in (
                    ("backend 'nonsense' is not one of .*cpu_forward", dict(backend="nonsense")),
                    ("softcap -3 is not finite and above 0", dict(softcap=-3)),
                    ("softcap nan is not", dict(softcap=np.nan)),
                    ("dropout 1.5 is not in 0 <= dropout < 1", dict(dropout=1.5, seed=seed)),
                    ("lengths -1 and 0 are not in 0 ... 2", dict(max_q=-1)),
                    (r"bias is \[3, 4, 5\], not \[1 or", dict(bias=draw(3, 4, 5))),
                    (rf"bias is \[1, 3, 1, 1\], not \[1 or {batch}, 1 or 4, 1 or {rows} and more, 1 or {keys} and ",
                     dict(bias=draw(1, 3, 1, 1))),
                    (r"slopes is \[5\], not \[4\]", dict(slopes=draw(5))),
                    (rf"used_k is \[3\], not \[{batch}\]", dict(used_k=np.array([0, 0, 0], "int32")))):
                for run in both:
                    with self.subTest(sentence, batch=batch, rows=rows), self.assertRaisesRegex(attune.Error, sentence):
                        run(**named)
            attune.attend(q, k, v, backend="cpu_backward")  # a known name; which line it supports does not matter here
            wrong = draw(batch, rows + 1, 4, 16)
            for name, run in (("out", lambda: attune.attend(q, k, v, out=wrong)),
                              ("lse", lambda: attune.attend(q, k, v, lse=wrong[..., 0])),
                              ("out", lambda: attune.attend_backward(out, q, k, v, wrong, lse)),
                              ("lse", lambda: attune.attend_backward(out, q, k, v, out, wrong)),
                              ("d_out", lambda: attune.attend_backward(wrong, q, k, v, out, lse)),
                              ("d_lse", lambda: attune.attend_backward(out, q, k, v, out, lse, d_lse=wrong))):
                with self.subTest(name, batch=batch, rows=rows), self.assertRaisesRegex(
                        attune.Error, rf"attune: {name} is \[.*\], not \[.*\]"):
                    run()
            for named in (dict(backend="cpu_forward"), dict(softcap=2.0), dict(bias=draw(1, 4, 1, 1)),
                          dict(bias=draw(1, 1, rows + 2, keys)), dict(used_k=used[:batch], slopes=draw(4)),
                          dict(dropout=0.5, seed=seed)):
                self.assertTrue((attune.attend(q, k, v, **named) == 0).all())

    def test_rows_in_no_sequence_are_zero_and_weigh_nothing(self):
        q, k, v, d = (draw(10, 2, 8, seed=n) for n in range(4))
        cu = np.array([0, 3, 7], "int32")
        packed = dict(layout="thd", cu_q=cu, cu_k=cu, max_q=4, max_k=4)
        padded = dict(used_q=np.array([3], "int32"))
        for named, count, tensors in ((packed, 7, (q, k, v, d)), (padded, 3, tuple(x[None] for x in (q, k, v, d)))):
            with self.subTest(count=count), made_of(np.nan):
                q_, k_, v_, d_ = tensors
                out, lse = attune.attend(q_, k_, v_, return_lse=True, **named)
                dq = attune.attend_backward(d_, q_, k_, v_, out, lse, **named)[0]
                rows = (slice(None),) * (out.ndim - 3)
                for x in (out, dq):
                    self.assertTrue(np.isfinite(x).all())
                    self.assertEqual(np.abs(x[(*rows, slice(count, None))]).max(), 0)
                self.assertTrue((lse[..., count:] == -np.inf).all() and np.isfinite(lse[..., :count]).all())

    def test_a_scale_that_kernels_cannot_use_is_refused(self):
        q = draw(1, 4, 2, 8)
        for scale in (0.0, -1.0, float("nan"), float("inf"), 1e-50, 1.1e30, 1e38, 1e39):
            with self.subTest(scale), self.assertRaisesRegex(attune.Error, "scale .* is not a number that kernels can"):
                attune.attend(q, q, q, scale=scale)
        self.near(attune.attend(q, q, q, scale=2.0**-149), np.broadcast_to(q.mean(1, keepdims=True), q.shape))
        self.assertFalse(np.isnan(attune.attend(np.ones_like(q) * 1e-30, q * 1e-30, q, scale=1e30)).any())

    def test_a_read_only_cache_is_not_appended_to(self):
        k, v = draw(1, 6, 2, 8, seed=1), draw(1, 6, 2, 8, seed=2)
        q, new = draw(1, 1, 2, 8), draw(1, 1, 2, 8, seed=3)
        for name, cache in (("k", k), ("v", v)):
            before = cache.copy()
            cache.flags.writeable = False
            with self.assertRaisesRegex(attune.Error, f"{name}: its memory is read-only"):
                attune.attend(q, k, v, used_k=np.array([2], "int32"), k_new=new, v_new=new)
            np.testing.assert_array_equal(cache, before)
            cache.flags.writeable = True

    def test_a_backward_reads_out_and_lse_that_are_read_only(self):
        q, k, v, d = (draw(1, 4, 2, 8, seed=n) for n in range(4))
        out, lse = attune.attend(q, k, v, return_lse=True)
        wanted = attune.attend_backward(d, q, k, v, out, lse)
        out.flags.writeable = lse.flags.writeable = False
        for got, w in zip(attune.attend_backward(d, q, k, v, out, lse), wanted):
            self.near(got, w, 0)


@unittest.skipIf(np is None, "NumPy is not here")
class HostileProducers(unittest.TestCase):
    def test_a_shape_that_cannot_be_read_is_refused(self):
        import standin

        class Hostile(standin.ndarray):
            def __dlpack__(self, **named):
                capsule = super().__dlpack__(**named)
                tensor = self._kept[-3].tensor
                tensor.ndim, tensor.shape = self.axes, tensor.shape if self.has_shape else None
                return capsule

        q = draw(1, 4, 2, 8)
        for role, at in (("q", 0), ("k", 1), ("out", 3)):
            for axes, has_shape in ((4, False), (2**31 - 1, True), (2**31 - 1, False), (-1, True), (65, True)):
                for versions in (True, False):
                    bad = Hostile(q, kind=standin.CPU, knows_versions=versions)
                    bad.axes, bad.has_shape = axes, has_shape
                    given = [q, q, q, np.empty_like(q)]
                    given[at] = bad
                    with self.assertRaisesRegex(attune.Error, f"{role}: its producer lends {axes} axes"):
                        attune.attend(*given[:3], out=given[3])


    def test_the_mask_of_a_masked_array_is_not_ignored(self):
        q = draw(1, 4, 1, 8)
        with self.assertRaisesRegex(attune.Error, "k: a masked array is not accepted"):
            attune.attend(q, np.ma.masked_array(q, q > 0), q)
        attune.attend(q, q, q)


class CuPy(unittest.TestCase):
    def setUp(self):
        try:
            import cupy

            cupy.cuda.runtime.getDeviceCount()
        except Exception:  # not installed, or no driver
            self.skipTest("CuPy with a GPU is not here")
        self.cupy = cupy

    def test_arrays_on_a_gpu_run_on_the_current_stream(self):
        q, k, v = (draw(1, 64, 4, 64, seed=n, dtype="float16") for n in range(3))
        wanted, _ = reference.attention(q[0], k[0], v[0], seen=reference.visible(64, 64, True))
        for stream in (self.cupy.cuda.Stream.null, self.cupy.cuda.Stream(non_blocking=True)):
            with stream:
                given = [self.cupy.asarray(x) for x in (q, k, v)]
                out = attune.attend(*given, causal=True)
                self.assertIsInstance(out, self.cupy.ndarray)
                np.testing.assert_allclose(self.cupy.asnumpy(out)[0].astype("float64"), wanted, rtol=0, atol=4e-3)


if __name__ == "__main__":
    unittest.main()
