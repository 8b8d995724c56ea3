#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Other libraries' attention as peers of `attune bench`, without a GPU. Exits with 77 if PyTorch is not installed.

    ways_test.py <attune>"""
import contextlib
import gc
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
import warnings
import weakref
from unittest import mock

warnings.filterwarnings("ignore", message=".*NumPy.*")
try:
    import torch
except ImportError:
    sys.exit(77)
SOURCE = pathlib.Path(__file__).resolve().parents[3]
ATTUNE = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else ""
sys.path.insert(0, str(SOURCE / "tool/peers"))
import libraries
import own
import problem as problems
import ways


class Graph:
    def replay(self):
        pass


class Captured(unittest.TestCase):
    def test_a_replay_keeps_what_its_graph_reads(self):
        tensors = [torch.randn(1, 2, 4, 8) for _ in range(4)]
        problem = types.SimpleNamespace(q=tensors[0], k=tensors[1], v=tensors[2], d_out=tensors[3], gpu=0, stream=None)
        made = []

        def forward(q, k, v):
            out = torch.softmax(q @ k.transpose(2, 3), -1) @ v
            made.append(weakref.ref(out))
            return out

        nothing = contextlib.nullcontext()
        with mock.patch.object(torch.cuda, "CUDAGraph", Graph), mock.patch.object(torch.cuda, "synchronize"), \
                mock.patch.object(torch.cuda, "graph", lambda *words, **named: nothing):
            replay = ways.captured_backward(problem, forward)
        gc.collect()
        self.assertTrue(replay.captured)
        self.assertEqual([g.shape for g in replay()], [x.shape for x in tensors[:3]])
        self.assertIsNotNone(made[0](), "the result of the forward, and with it what autograd saved, is gone")
        del replay
        gc.collect()
        self.assertIsNone(made[0](), "it outlives the replay")


# The operators that FlashAttention-3 registers with PyTorch: [batch, seq, head, dim], lse as [batch, head, seq].
class Operators:
    @staticmethod
    def attend(q, k, v, scale, causal):
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores[0, 0]).triu(1).bool(), -torch.inf)
        return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v), scores.logsumexp(-1)

    def fwd(self, q, k, v, softmax_scale, is_causal, num_splits):
        self.splits = num_splits
        return *self.attend(q, k, v, softmax_scale, is_causal), torch.empty(0), torch.empty(0)

    def bwd(self, d_out, q, k, v, out, lse, dq, dk, dv, softmax_scale, is_causal):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        again = self.attend(*leaves, softmax_scale, is_causal)
        if not all(torch.equal(x, y) for x, y in zip((out, lse), again)):
            raise ValueError("out and lse are not those of a forward")
        for x, grad in zip((dq, dk, dv), torch.autograd.grad(again[0], leaves, d_out)):
            x.copy_(grad)


class Fa3(unittest.TestCase):
    def test_its_operators_are_called_where_they_are(self):
        tensors = [torch.randn(2, 3, 5, 8) for _ in range(4)]
        problem = types.SimpleNamespace(q=tensors[0], k=tensors[1], v=tensors[2], d_out=tensors[3], gpu=-1, scale=0.3,
                                        features=[], options={})
        way = ways.Fa3(None)
        self.assertIsNone(way.ops, "they are not registered here")
        way.ops = Operators()
        for problem.causal in (False, True):
            leaves = [x.clone().requires_grad_() for x in tensors[:3]]
            want = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=problem.causal, scale=0.3)
            torch.testing.assert_close(way.attend(problem, *tensors[:3]), want)
            grads = torch.autograd.grad(want, leaves, tensors[3])
            for got, grad in zip(way.backward(problem)(), grads, strict=True):
                torch.testing.assert_close(got, grad)

    def test_it_chooses_its_splits_where_queries_are_few(self):
        problem = types.SimpleNamespace(scale=0.3, causal=False, features=[])
        way = ways.Fa3(None)
        way.ops = Operators()
        k = torch.randn(2, 3, 5, 8)
        for queries, splits in ((5, 1), (1, 0)):
            way.attend(problem, torch.randn(2, 3, queries, 8), k, k)
            self.assertEqual(way.ops.splits, splits)

    def test_without_operators_its_functions_are(self):
        def function(q, k, v, softmax_scale, causal):
            return Operators.attend(q, k, v, softmax_scale, causal)
        problem = types.SimpleNamespace(scale=0.3, causal=True, features=[], options={})
        q, k, v = (torch.randn(2, 3, 5, 8) for _ in range(3))
        want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
        torch.testing.assert_close(ways.Fa3(function).attend(problem, q, k, v), want)


# torch's operator below SDPA's: masks aligned to the last key, -1 for no limit.
class Below:
    @staticmethod
    def attend(q, k, v, causal, scale, left, right):
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
        ahead = torch.arange(k.shape[1])[None, :] - torch.arange(q.shape[1])[:, None] - (k.shape[1] - q.shape[1])
        hidden = ahead > (0 if causal else right if right >= 0 else k.shape[1])
        if left >= 0:
            hidden |= ahead < -left
        scores = scores.masked_fill(hidden, -torch.inf)
        return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v), scores.logsumexp(-1)

    def _flash_attention_forward(self, q, k, v, cu_q, cu_k, most_q, most_k, dropout, causal, debug, *, scale,
                                 window_size_left, window_size_right):
        out, lse = self.attend(q, k, v, causal, scale, window_size_left, window_size_right)
        return out, lse, torch.zeros(2), torch.zeros(1), torch.zeros(0)

    def _flash_attention_backward(self, d_out, q, k, v, out, lse, cu_q, cu_k, most_q, most_k, dropout, causal, seed,
                                  offset, *, scale, window_size_left, window_size_right):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        again = self.attend(*leaves, causal, scale, window_size_left, window_size_right)
        assert torch.equal(out, again[0]) and torch.equal(lse, again[1])
        return torch.autograd.grad(again[0], leaves, d_out)


class Flash(unittest.TestCase):
    def test_a_window_goes_to_the_operator_below(self):
        tensors = [torch.randn(2, 3, n, 8) for n in (5, 9, 9, 5)]
        way = ways.Flash()
        ahead = torch.arange(9)[None, :] - torch.arange(5)[:, None] - 4
        for left, right in ((2, 0), (-1, 1), (3, -1), (2, 1)):
            problem = types.SimpleNamespace(
                q=tensors[0], k=tensors[1], v=tensors[2], d_out=tensors[3], len_q=5, len_k=9, scale=0.3, causal=False,
                features=["window", "shifted"], window=lambda: (left, right))
            kept = (ahead >= (-left if left >= 0 else -99)) & (ahead <= (right if right >= 0 else 99))
            added = torch.zeros(5, 9).masked_fill(~kept, -torch.inf)
            leaves = [x.clone().requires_grad_() for x in tensors[:3]]
            want = torch.nn.functional.scaled_dot_product_attention(*leaves, attn_mask=added, scale=0.3)
            with mock.patch.object(ways, "aten", Below()):
                way.check(problem)
                torch.testing.assert_close(way.attend(problem, *tensors[:3]), want.detach())
                got = way.backward(problem)()
            for one, grad in zip(got, torch.autograd.grad(want, leaves, tensors[3]), strict=True):
                torch.testing.assert_close(one, grad)

    def test_plain_masks_go_to_sdpas_operator(self):
        problem = types.SimpleNamespace(features=[])
        ways.Flash().check(problem)
        self.assertFalse(problem.below)


# Libraries whose functions are called with what they document; these stand-ins check it and attend.
class Stand:
    fmha = types.SimpleNamespace(attn_bias=types.SimpleNamespace(
        LowerTriangularFromBottomRightMask=lambda: (-1, 0),
        LocalAttentionFromBottomRightMask=lambda left, right: (left, right)))

    @staticmethod
    def memory_efficient_attention(q, k, v, attn_bias, scale):
        left, right = attn_bias or (-1, -1)
        return Below.attend(q, k, v, False, scale, left, right)[0]

    class BatchPrefillWithRaggedKVCacheWrapper:
        def __init__(self, workspace, layout):
            assert layout == "NHD" and workspace.dtype == torch.uint8

        def plan(self, q_starts, k_starts, heads, kv_heads, dim, *, head_dim_vo, causal, sm_scale, window_left,
                 logits_soft_cap, q_data_type):
            assert (heads, kv_heads, dim, head_dim_vo, logits_soft_cap) == (3, 3, 8, 8, 0.0)
            self.starts, self.options = (q_starts, k_starts), (causal, sm_scale, window_left)

        def run(self, q, k, v):
            return packed(q, k, v, *self.starts, *self.options)


def packed(q, k, v, q_starts, k_starts, causal, scale, left=-1):
    assert q.dtype == k.dtype and q_starts.dtype == torch.int32
    pieces = zip(q_starts, q_starts[1:], k_starts, k_starts[1:])
    return torch.cat([Below.attend(q[None, a:b], k[None, c:d], v[None, c:d], causal, scale, left, -1)[0][0]
                      for a, b, c, d in pieces])


class Libraries(unittest.TestCase):
    def test_they_are_called_as_they_document(self):
        ahead = torch.arange(9)[None, :] - torch.arange(5)[:, None] - 4
        for kind, left, right in (("full", -1, -1), ("causal", -1, 0), ("window", 2, 0)):
            q, k, v = (torch.randn(2, n, 3, 8).transpose(1, 2) for n in (5, 9, 9))
            kept = (ahead >= (-left if left >= 0 else -99)) & (ahead <= (right if right >= 0 else 99))
            want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=kept, scale=8 ** -0.5)
            sides = {"left": left if left >= 0 else None, "right": right if right >= 0 else None}
            for way in (libraries.Xformers(Stand), libraries.FlashInfer(Stand)):
                p = described({"kind": kind, **sides}, q, k, v)
                way.check(p)
                torch.testing.assert_close(way.attend(p, q, k, v), want)

    def test_version_1_gets_packed_sequences(self):
        def function(q, k, v, q_starts, k_starts, most_q, most_k, dropout, softmax_scale, causal):
            assert (most_q, most_k, dropout) == (5, 5, 0.0)
            return packed(q, k, v, q_starts, k_starts, causal, softmax_scale)
        q, k, v = (torch.randn(2, 3, 5, 8) for _ in range(3))
        want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        p = described({"kind": "causal"}, q, k, v)
        torch.testing.assert_close(libraries.Flash1(function).attend(p, q, k, v), want)

    def test_what_they_lack_is_a_sentence(self):
        q, k, v = (torch.randn(2, 3, n, 8) for n in (5, 9, 9))
        p = described({"kind": "window", "left": 2, "right": 1}, q, k, v)
        with self.assertRaisesRegex(problems.Refused, "serves windows that end at the query"):
            libraries.FlashInfer(Stand).check(p)
        p.forward = False
        with self.assertRaisesRegex(problems.Refused, "has no backward"):
            libraries.FlashInfer(Stand).check(p)
        with self.assertRaisesRegex(problems.Refused, "give --layout bshd"):
            libraries.FlashInfer(Stand).check(described({}, q, k, v))


# What the tool sends, with tensors of torch instead of addresses.
def described(mask, q, k, v, options=(), **tensors):
    m = {"kind": "full", "left": 0, "right": 0, "align": "bottom_right", "k_step": 1, "k_phase": 0, "blocks": None}
    m.update(mask)
    text = {"gpu": -1, "problem": "a line", "scale": q.shape[3] ** -0.5, "softcap": 2.0, "pass": "forward", "mask": m,
            "len_q": q.shape[2], "len_k": k.shape[2], "options": list(options), "keys": "linear", "variant": "",
            "threads": 1, "results": {}, "tensors": dict.fromkeys(("q", "k", "v", *tensors))}
    p = problems.Problem(text)
    p.tensors, p.q, p.k, p.v = {"q": q, "k": k, "v": v, **tensors}, q, k, v
    return p


class Masks(unittest.TestCase):
    q, k, v = torch.randn(2, 4, 12, 8), torch.randn(2, 2, 20, 8), torch.randn(2, 2, 20, 8)

    def visible(self, **mask):
        return described(mask, self.q, self.k, self.v).visible()

    def test_a_full_mask_is_none(self):
        self.assertIsNone(self.visible())

    def test_positions_are_aligned_as_the_problem_says(self):
        i, j = torch.arange(12)[:, None], torch.arange(20)
        for mask, want in (({"kind": "causal"}, j <= i + 8),
                           ({"kind": "causal", "align": "top_left"}, j <= i),
                           ({"kind": "window", "left": 3, "right": 1}, (j >= i + 5) & (j <= i + 9)),
                           ({"kind": "window", "left": None, "right": -2}, j <= i + 6),
                           ({"kind": "causal", "align": "absolute", "k_step": 4, "k_phase": 3}, 4 * j + 3 <= i)):
            self.assertTrue(torch.equal(self.visible(**mask)[0, 0], want), mask)

    def test_positions_of_a_sequence_shift_an_absolute_mask(self):
        at = torch.tensor([[5, 0], [0, 2]]).reshape(2, 1, 1, 2)
        p = described({"kind": "causal", "align": "absolute"}, self.q, self.k, self.v, positions=at)
        i, j = torch.arange(12)[:, None], torch.arange(20)
        self.assertTrue(torch.equal(p.visible()[0, 0], j <= i + 5))
        self.assertTrue(torch.equal(p.visible()[1, 0], j + 2 <= i))

    def test_block_lists_are_masks_of_pairs(self):
        begin = torch.tensor([0, 2, 2, 3]).reshape(1, 1, 1, 4)  # rows of 4 queries, columns of 10 keys
        column = torch.tensor([0, 1, 1, -1]).reshape(1, 1, 1, 4)
        p = described({"blocks": [4, 10, 4]}, self.q, self.k, self.v, block_begin=begin, block_column=column)
        seen = p.visible()[0, 0]
        self.assertTrue(seen[:4].all())
        self.assertFalse(seen[4:8].any())
        self.assertTrue((seen[8:] == (torch.arange(20) >= 10)).all())

    def test_a_window_aside_of_the_query_is_a_feature_of_its_own(self):
        p = described({"kind": "window", "left": None, "right": -2}, self.q, self.k, self.v)
        self.assertEqual(p.features, ["window_aside", "shifted"])

    def test_flex_agrees_with_a_mask(self):  # not compiled
        slopes = torch.rand(1, 4, 1, 1)
        bias = torch.randn(2, 4, 12, 20)
        way = ways.Flex()
        way.compiled = way.module.flex_attention
        for mask, options in (({"kind": "causal"}, []), ({"kind": "window", "left": 3, "right": 1}, ["alibi"]),
                              ({}, ["bias"]), ({"kind": "causal", "align": "top_left"}, ["bias", "alibi"])):
            p = described(mask, self.q, self.k, self.v, options, slopes=slopes, bias=bias)
            p.features = [f for f in p.features if f not in ("slopes", "bias")] + options
            way.check(p)
            ways.Sdpa().check(p)
            want = ways.Sdpa().attend(p, self.q, self.k, self.v)
            torch.testing.assert_close(way.attend(p, self.q, self.k, self.v), want, msg=str((mask, options)))


class Own(unittest.TestCase):
    def test_parameters_say_what_a_function_serves(self):
        self.assertEqual(own.Own(lambda q, k, v: q).serves, frozenset())
        self.assertEqual(own.Own(lambda q, k, v, *, window, softcap: q).serves, {"window", "shifted", "softcap"})
        for wrong in (lambda q, k: q, lambda q, k, v, foo: q, lambda q, k, v, **rest: q):
            with self.assertRaises(problems.Refused):
                own.Own(wrong)
        own.Own(lambda q, k, v, foo=1: q)

    def test_what_is_missing_is_named(self):
        for name, words in (("nothing.py:f", "no file 'nothing.py'"), (__file__ + ":nothing", "no function 'nothing'")):
            with self.assertRaisesRegex(problems.Refused, words):
                own.find(name)


WRONG = """
import torch
def off_by_one(q, k, v, *, scale, causal):
    scores = q @ k.transpose(2, 3) * scale
    seen = torch.ones(scores.shape[2:], dtype=torch.bool).tril(k.shape[2] - q.shape[2] + 1)
    return torch.softmax(scores.masked_fill(~seen, -torch.inf), -1) @ v
def no_scale(q, k, v, *, scale, mask):
    return torch.softmax((q @ k.transpose(2, 3)).masked_fill(~mask, -torch.inf), -1) @ v
def transposed(q, k, v, *, scale, mask):
    return right_of(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), scale, mask).transpose(1, 2)
transposed.layout = "bshd"
def aborts(q, k, v, *, scale, mask):
    import os
    if q.shape[2] == 65:
        os.abort()
    return right_of(q, k, v, scale, mask)
def leaves(q, k, v, *, scale, mask):
    raise SystemExit(3)
def hides_itself(q, k, v, *, scale, causal):
    scores = q @ k.transpose(2, 3) * scale
    seen = torch.ones(scores.shape[2:], dtype=torch.bool).tril(k.shape[2] - q.shape[2] - 1)
    return torch.softmax(scores.masked_fill(~seen, -torch.inf), -1) @ v
class Swapped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, scale, mask):
        ctx.save_for_backward(q, k, v)
        ctx.rest = scale, mask
        return right_of(q, k, v, scale, mask)
    @staticmethod
    def backward(ctx, d_out):
        leaves = [x.detach().requires_grad_() for x in ctx.saved_tensors]
        with torch.enable_grad():
            dq, dk, dv = torch.autograd.grad(right_of(*leaves, *ctx.rest), leaves, d_out)
        return dq, dv, dk, None, None
def swapped(q, k, v, *, scale, mask):
    return Swapped.apply(q, k, v, scale, mask)
def last_of_group(q, k, v, *, scale, mask):
    group = q.shape[1] // k.shape[1]
    last = (torch.arange(q.shape[1]) % group == group - 1)[:, None, None]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    return right_of(q, *(torch.where(last, x, x.detach()) for x in (k, v)), scale, mask)
def right_of(q, k, v, scale, mask):
    return torch.softmax((q @ k.transpose(2, 3) * scale).masked_fill(~mask, -torch.inf), -1) @ v
"""


@unittest.skipUnless(ATTUNE, "the command is not given")
class Bench(unittest.TestCase):
    def records(self, peers, *lines):
        words = [ATTUNE, "bench", "--python", sys.executable, "--max-seconds", "0.05", "--json", "--peer", peers]
        words += lines
        ran = subprocess.run(words, capture_output=True, text=True, timeout=300)
        found = [json.loads(line) for line in ran.stdout.splitlines()]
        self.assertTrue(found, ran.stderr)
        return {(r["problem"], r["subject"]): r for r in found}

    def test_what_a_function_prints_is_not_in_the_answer_and_an_exit_is_a_failure(self):
        line, sdpa = "forward f32 b1 h2 q64 k64 d32 full", "torch.nn.functional.scaled_dot_product_attention(q, k, v)"
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "mine.py"
            path.write_text("import torch\nprint('imported')\ncalls = [0]\n"
                            f"def loud(q, k, v):\n    print('called')\n    return {sdpa}\n"
                            "def leaves(q, k, v):\n    calls[0] += 1\n    if calls[0] > 3: raise SystemExit\n"
                            f"    return {sdpa}\n")
            found = self.records(f"{path}:loud,{path}:leaves", line)  # every line of its stdout is JSON
        self.assertEqual(found[line, "mine.py:loud"]["parity"]["verdict"], "PASS")
        left = found[line, "mine.py:leaves"]
        self.assertEqual((left["status"], left["message"]), ("failed", "mine.py:leaves: SystemExit"))

    def test_every_mask_agrees_with_the_reference(self):
        lines = ["forward f32 b1 h4/2 q64 k96 d64 causal", "backward f32 b1 h4/2 q64 k96 d64 window*,0",
                 "forward f32 b2 h2 q32 k96 d32 causal@top_left", "forward f32 b2 h2 q64 k96 d32 window90,-3",
                 "forward f32 b2 h2 q64 k64 d32 window*,0@absolute", "forward f32 b1 h2 q1 k300 d64 causal"]
        mine = "my_attention.py:attention"
        found = self.records("torch:sdpa,torch:math," + str(SOURCE / "examples" / mine), *lines)
        for line in lines:
            for subject in ("torch:sdpa", "torch:math", mine):
                r = found[line, subject]
                self.assertEqual(r["parity"]["verdict"], "PASS", r["message"])
        for line in ("forward f32 b2 h4/2 q64 k96 d32 causal alibi", "forward f32 b2 h4 q64 k96 d32 causal bias"):
            found = self.records("torch:sdpa,torch:math," + str(SOURCE / "examples" / mine), line)
            for subject in ("torch:sdpa", "torch:math"):
                self.assertEqual(found[line, subject]["parity"]["verdict"], "PASS", found[line, subject]["message"])
            self.assertEqual(found[line, mine]["status"], "unsupported")
            self.assertIn("does not serve " + line.split()[-1] + ";", found[line, mine]["message"])

    def test_a_wrong_function_is_named_and_not_timed(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "wrong.py"
            path.write_text(WRONG)
            line = "forward f32 b1 h4 q64 k96 d64 causal"
            names = ("off_by_one", "no_scale", "transposed")
            found = self.records(",".join("%s:%s" % (path, name) for name in names), line)
        for name, mistake in (("off_by_one", "window-off-by-one"), ("no_scale", "missing-scale")):
            r = found[line, "wrong.py:" + name]
            self.assertEqual((r["status"], r["parity"]["mistake"], r["samples_ns"]), ("failed", mistake, []))
        self.assertEqual(found[line, "wrong.py:transposed"]["status"], "ok")

    @unittest.skipUnless(importlib.util.find_spec("jax"), "jax is not installed")
    def test_jax_agrees_with_the_reference(self):
        lines = ["forward f32 b2 h4/2 q64 k96 d64 causal", "forward bf16 b2 h4 q64 k64 d64 causal",
                 "forward f32 b1 h2 q48 k48 d32 window7,0", "forward f32 b2 h4 q64 k64 d32 full alibi",
                 "backward f32 b1 h4/2 q64 k64 d64 causal", "backward f32 b1 h2 q48 k80 d32 window7,0"]
        for layout in ("bhsd", "bshd"):
            found = self.records("jax", *lines, "--layout", layout)
            for line in lines:
                r = found[line, "jax"]
                self.assertEqual((r["parity"]["verdict"], r["status"]), ("PASS", "ok"), r["message"])
                self.assertTrue(r["peer"])

    def test_a_library_that_is_missing_is_a_row_that_says_so(self):
        line = "forward f32 b1 h2 q48 k48 d32 full"
        missing = [name for name in ("xformers", "flashinfer", "flash_attn1")
                   if not importlib.util.find_spec(name.rstrip("1"))]
        for name, r in self.records(",".join(missing), line).items() if missing else ():
            if name[1] in missing:
                self.assertEqual(r["status"], "unsupported")
                self.assertIn("No module named", r["message"])

    def test_a_wrong_backward_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "wrong.py"
            path.write_text(WRONG)
            line = "backward f32 b1 h4 q64 k96 d64 causal"
            square, grouped = "backward f32 b1 h4 q64 k64 d64 causal", "backward f32 b1 h4/2 q64 k96 d64 causal"
            wanted = {("off_by_one", line): "window-off-by-one", ("no_scale", line): "missing-scale",
                      ("hides_itself", square): "window-off-by-one", ("swapped", line): "swapped-gradients",
                      ("last_of_group", grouped): "missing-group-sum"}
            found = self.records(",".join(sorted({"%s:%s" % (path, name) for name, _ in wanted})), line, square,
                                 grouped)
        for (name, line), mistake in wanted.items():
            r = found[line, "wrong.py:" + name]
            self.assertEqual((r["status"], r["parity"]["mistake"], r["samples_ns"]), ("failed", mistake, []), r)

    def test_a_function_that_ends_its_process_is_a_failed_row(self):
        with tempfile.TemporaryDirectory() as folder:
            path, dies = pathlib.Path(folder) / "wrong.py", pathlib.Path(folder) / "dies.py"
            path.write_text(WRONG)
            dies.write_text("import os\nos._exit(5)\n")
            lines = ["forward f32 b1 h4 q%d k96 d64 causal" % n for n in (64, 65, 66)]
            found = self.records("%s:aborts,%s:leaves,%s:f" % (path, path, dies), *lines)
        for line, message in zip(lines, ("", "wrong.py:aborts: it ended its process with SIGABRT", "")):
            r = found[line, "wrong.py:aborts"]
            self.assertEqual((r["status"], r["message"]), ("failed" if message else "ok", message))
            self.assertEqual(found[line, "wrong.py:leaves"]["message"], "wrong.py:leaves: SystemExit: 3")
            self.assertEqual(found[line, "dies.py:f"]["message"],
                             "dies.py:f: it ended its process with exit code 5 while it was loaded")
            self.assertEqual(found[line, "cpu_forward"]["status"], "ok")


@unittest.skipUnless(ATTUNE, "the command is not given")
class Parity(unittest.TestCase):
    def rows(self, code, *words):
        ran = subprocess.run([ATTUNE, "parity", "--json", "--python", sys.executable, *words], capture_output=True,
                             text=True, timeout=300)
        self.assertEqual(ran.returncode, code, ran.stderr + ran.stdout)
        return json.loads(ran.stdout)["rows"]

    def test_peers_are_compared_with_the_reference_and_with_each_other(self):
        mine = str(SOURCE / "examples/my_attention.py:attention")
        lines = ["forward f32 b1 h4/2 q64 k96 d64 causal", "backward f32 b1 h4 q40 k40 d32 window9,0",
                 "forward bf16 b1 h2 q128 k128 d32 causal blocks64x64x1 | random density=0.5"]
        rows = self.rows(0, "--peer", "torch:math," + mine, *lines)
        self.assertEqual([r["subject"] for r in rows], ["torch:math", "my_attention.py:attention"] * 3)
        self.assertTrue(all(r["verdict"].startswith("PASS") for r in rows), rows)
        self.assertEqual([o["output"] for o in rows[2]["outputs"]], ["dq", "dk", "dv"])
        rows = self.rows(0, "--peer", mine, "--against", "torch:sdpa", *lines)
        self.assertEqual([r["verdict"] for r in rows], ["compared"] * 3)
        self.assertTrue(all(r["mae"] < 2e-3 for r in rows), rows)

    def test_a_peer_without_an_option_is_a_row_that_says_so(self):
        rows = self.rows(0, "--peer", "torch:math,torch:flash", "forward f32 b1 h2 q8 k8 d8 causal softcap")
        self.assertEqual([r["verdict"] for r in rows], ["-", "-"])
        self.assertIn("torch:math: does not serve softcap", rows[0]["message"])
        self.assertIn("torch:flash: runs on a GPU only", rows[1]["message"])

    def test_a_wrong_function_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "wrong.py"
            path.write_text(WRONG)
            for against in ([], ["--against", "torch:math"]):
                rows = self.rows(1, "--peer", "%s:off_by_one,%s:no_scale,%s:transposed" % (path, path, path), *against,
                                 "forward f32 b1 h4 q64 k96 d64 causal")
                self.assertEqual([r["mistake"].split(":")[0] for r in rows],
                                 ["window-off-by-one", "missing-scale", ""], rows)


if __name__ == "__main__":
    unittest.main()
