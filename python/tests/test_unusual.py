# SPDX-License-Identifier: Apache-2.0
"""Tensors that PyTorch's functions accept and others forget: empty ones, and views that are negated on read
(torch._neg_view, the imaginary part of a conjugate). Through every entry point, on the CPU and on a GPU if there is
one."""

from __future__ import annotations

import contextlib
import unittest

import needs

needs.pytorch()

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import attune
import attune.flash_attn as fa
import attune.flash_attn_interface as fa3
import attune.torch as at

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def one(*shape, grad=False):
    return torch.randn(shape).requires_grad_(grad)


def draw(*shapes, device="cpu"):
    return [torch.randn(shape).to(device).requires_grad_() for shape in shapes]


def spelled_out(q, k, v):
    scores = torch.einsum("bshd,bthd->bhst", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("bhst,bthd->bshd", scores.softmax(-1), v), scores.logsumexp(-1)


class Through(TorchDispatchMode):
    """A mode that changes nothing, so that calls use the operators."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Unusual(unittest.TestCase):
    def near(self, got, wanted, tolerance=0.0):
        torch.testing.assert_close(got.double(), wanted.double(), rtol=tolerance, atol=tolerance)

    def test_a_negated_view_is_read_as_pytorch_reads_it(self):
        for device in DEVICES:
            q, k, v, bias = draw((2, 5, 4, 16), (2, 7, 2, 16), (2, 7, 2, 16), (1, 4, 5, 7), device=device)
            out, lse = at.attend(-q, -k, -v, bias=-bias, return_lse=True)
            wanted = torch.autograd.grad((out.sum() + lse.sum()), (q, k, v, bias))
            for plain in (True, False):
                with self.subTest(device=device, plain=plain):
                    views = [torch._neg_view(t) for t in (q, k, v, bias)]
                    mode = contextlib.nullcontext() if plain else Through()
                    with mode:
                        got, got_lse = at.attend(*views[:3], bias=views[3], return_lse=True)
                    self.near(got, out, 0)
                    self.near(got_lse, lse, 0)
                    for mine, true in zip(torch.autograd.grad((got.sum() + got_lse.sum()), (q, k, v, bias)), wanted):
                        self.near(mine, true, 0)
            self.near(at.attend(*views[:3]), at.attend(-q, -k, -v), 0)
            self.near(at.attend(*(t.detach() for t in views[:3])), at.attend(-q, -k, -v), 0)
            with torch.no_grad():
                self.near(torch.compile(at.attend, backend="eager")(*views[:3]), at.attend(-q, -k, -v), 0)
                turned = [t.transpose(1, 2) for t in (q, k, v)]
                for mask in (None, -bias):
                    negated = torch._neg_view(mask.neg()) if mask is not None else None
                    for _ in range(2):  # again, when the form of the call is known
                        self.near(at.scaled_dot_product_attention(*map(torch._neg_view, turned), negated,
                                                                  enable_gqa=True),
                                  at.scaled_dot_product_attention(*(-t for t in turned), mask, enable_gqa=True), 0)

    def test_a_gradient_that_is_a_negated_view_keeps_its_sign(self):
        q, k, v = draw((1, 5, 2, 8), (1, 7, 2, 8), (1, 7, 2, 8))
        seen = []

        def gradients(out, lse):
            out.register_hook(lambda g: seen.append(g.is_neg()))
            weighed = torch.complex(torch.zeros_like(out), out).conj() * torch.arange(out.numel()).reshape(out.shape)
            return torch.autograd.grad(weighed.imag.sum() + torch.complex(lse, lse).conj().imag.sum(), (q, k, v))

        for mine, true in zip(gradients(*at.attend(q, k, v, return_lse=True)), gradients(*spelled_out(q, k, v))):
            self.near(mine, true, 1e-4)
        self.assertEqual(seen, [True, True])  # autograd makes such gradients
        d_out = torch.randn(1, 5, 2, 8)
        for mine, true in zip(torch.autograd.grad(at.attend(q, k, v), (q, k, v), torch._neg_view(d_out)),
                              torch.autograd.grad(at.attend(q, k, v), (q, k, v), -d_out)):
            self.near(mine, true, 0)

    def test_a_layer_reads_negated_views_as_pytorch_does(self):
        layer = at.Module("multihead f32 b1 s4 e8 h2 | causal")
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter)
        x, d_out = one(1, 4, 8, grad=True), one(1, 4, 8)
        for mode in (contextlib.nullcontext(), Through()):
            with mode:
                got, wanted = layer(torch._neg_view(x)), layer(-x)
                self.near(got, wanted, 0)
                mine, true = (torch.autograd.grad(out, (x, *layer.parameters()), f(d_out))
                              for out, f in ((got, torch._neg_view), (wanted, torch.neg)))
            for a, b in zip(mine, true):
                self.near(a, b, 0)
        with torch.no_grad():
            self.near(layer(torch._neg_view(x)), layer(-x), 0)

    def test_where_a_copy_would_be_lost_a_negated_view_is_refused(self):
        q, k, v, new = (t.detach() for t in draw((2, 1, 2, 8), (2, 6, 2, 8), (2, 6, 2, 8), (2, 1, 2, 8)))
        used = torch.tensor([2, 5], dtype=torch.int32)
        before = k.clone()
        with self.assertRaisesRegex(attune.Error, r"k: a view that PyTorch negates .* resolve_neg\(\)"):
            at.attend(q, torch._neg_view(k), v, used_k=used, k_new=new, v_new=new)
        self.near(k, before, 0)
        for name in ("q", "k", "v", "out"):
            given = {"q": q, "k": k, "v": v, "out": torch.zeros_like(q)}
            given[name] = torch._neg_view(given[name])
            with self.assertRaisesRegex(attune.Error, f"attune: {name}: a view that PyTorch negates"):
                attune.attend(*(given[n] for n in "qkv"), out=given["out"])
        with self.assertRaisesRegex(attune.Error, "attune: lse: a view that PyTorch negates"):
            attune.attend(q, k, v, out=torch.zeros_like(q), lse=torch._neg_view(torch.zeros(2, 2, 1)))
        cache = attune.Cache(heads=2, dim=8, sequences=2, capacity=6)
        for named in ({"out": torch._neg_view(torch.zeros_like(q))}, {"k_new": torch._neg_view(new), "v_new": new}):
            with self.assertRaisesRegex(attune.Error, "a view that PyTorch negates"):
                cache.attend(q, **named)
        layer = attune.Module("multihead f32 b1 s4 e8 h2 | causal")
        with self.assertRaisesRegex(attune.Error, "x: a view that PyTorch negates"):
            layer.forward(torch._neg_view(torch.zeros(1, 4, 8)), out=torch.zeros(1, 4, 8))
        with self.assertRaisesRegex(attune.Error, "dtype torch.complex64|complex"):
            at.attend(*(torch.zeros(1, 2, 2, 8, dtype=torch.complex64).conj(),) * 3)

    def test_attention_of_no_query_or_to_no_key_is_nothing(self):
        for device in DEVICES:
            for batch, rows, keys in ((0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)):
                for layout in ("bshd", "bhsd", "thd"):
                    for how in ("simple", "bias", "compiled"):
                        with self.subTest(device=device, batch=batch, rows=rows, keys=keys, layout=layout, how=how):
                            self.nothing(device, batch, rows, keys, layout, how)

    def nothing(self, device, batch, rows, keys, layout, how):
        q, k, v = draw((batch, rows, 4, 8), (batch, keys, 2, 8), (batch, keys, 2, 16), device=device)
        named = {"layout": layout}
        if how == "bias":
            named["bias"] = torch.zeros(1, 1, 1, keys, device=device, requires_grad=True)
        if layout == "bhsd":
            tensors = [t.transpose(1, 2) for t in (q, k, v)]
        elif layout == "thd":
            if how == "bias":
                return
            tensors = [t.flatten(0, 1) for t in (q, k, v)]
            named |= {"cu_q": torch.arange(batch + 1, dtype=torch.int32, device=device) * rows, "max_q": rows,
                      "cu_k": torch.arange(batch + 1, dtype=torch.int32, device=device) * keys, "max_k": keys}
        else:
            tensors = [q, k, v]
        torch._dynamo.reset()  # Dynamo limits the number of programs per function
        function = torch.compile(at.attend, backend="eager", fullgraph=True) if how == "compiled" else at.attend
        with torch.no_grad():
            self.assertEqual(function(*tensors, **named).count_nonzero(), 0)
        self.assertEqual(function(*tensors, **named).count_nonzero(), 0)
        out, lse = function(*tensors, return_lse=True, **named)
        self.assertEqual(out.shape, (*tensors[0].shape[:-1], 16))
        self.assertEqual(lse.numel(), batch * rows * 4)
        self.assertTrue((lse == -torch.inf).all())
        wanted = [t for t in (q, k, v, named.get("bias")) if t is not None]
        for t, gradient in zip(wanted, torch.autograd.grad(out.sum(), wanted)):
            self.assertEqual(gradient.shape, t.shape)
            self.assertEqual(gradient.count_nonzero(), 0)

    def test_tensors_of_nothing_that_do_not_go_together_are_refused(self):
        for q, k, v in (((0, 3, 4, 8), (0, 3, 4, 16), (0, 3, 4, 16)), ((0, 3, 4, 8), (0, 3, 3, 8), (0, 3, 3, 8)),
                        ((0, 3, 4, 8), (1, 3, 4, 8), (1, 3, 4, 8)), ((1, 3, 4, 8), (1, 0, 4, 8), (1, 2, 4, 8))):
            with self.subTest(q=q, k=k), self.assertRaises(attune.Error):
                at.attend(*(torch.zeros(shape) for shape in (q, k, v)))
        q, k = torch.zeros(1, 3, 2, 8), torch.zeros(1, 0, 2, 8)
        for grad in (False, True):
            for sentence, named in (("backend 'nonsense' is not one of", {"backend": "nonsense"}),
                                    ("softcap -3 is not", {"softcap": -3}),
                                    (r"bias is \[1, 3, 1, 1\], not", {"bias": torch.zeros(1, 3, 1, 1)})):
                with self.subTest(sentence, grad=grad), self.assertRaisesRegex(attune.Error, sentence):
                    at.attend(q.requires_grad_(grad), k, k, **named)
        q = q.detach()
        with self.assertRaisesRegex(attune.Error, "len_k = 0"):  # lse would be that of the sinks
            at.attend(q, k, k, sinks=torch.zeros(2))

    def test_sdpa_of_no_query_or_no_key_is_pytorchs(self):
        for batch, rows, keys in ((0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)):
            for named in ({}, {"is_causal": True}, {"attn_mask": torch.zeros(rows, keys)}):
                with self.subTest(batch=batch, rows=rows, keys=keys, **named):
                    q, k, v = (torch.randn(batch, 2, n, 8, requires_grad=True) for n in (rows, keys, keys))
                    got, wanted = (f(q, k, v, **named) for f in
                                   (at.scaled_dot_product_attention, F.scaled_dot_product_attention))
                    torch.testing.assert_close(got, wanted, rtol=0, atol=0)
                    self.assertEqual(got.count_nonzero(), 0)
                    for mine, true in zip(*(torch.autograd.grad(out.sum(), (q, k, v)) for out in (got, wanted))):
                        torch.testing.assert_close(mine, true, rtol=0, atol=0)

    def test_flash_attn_of_no_query_or_no_key_is_nothing(self):
        for batch, rows, keys in ((0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)):
            q, k = one(batch, rows, 4, 8, grad=True), one(batch, keys, 2, 8, grad=True)
            v = one(batch, keys, 2, 16, grad=True)
            flat = [t.flatten(0, 1) for t in (q, k, v)]
            cu = [torch.arange(batch + 1, dtype=torch.int32) * n for n in (rows, keys)]
            slopes = torch.ones(batch, 4)
            for name, run in (
                    ("fa2", lambda: fa.flash_attn_func(q, k, v, return_attn_probs=True)),
                    ("slopes", lambda: fa.flash_attn_func(q, k, v, alibi_slopes=slopes, return_attn_probs=True)),
                    ("dropout", lambda: fa.flash_attn_func(q, k, v, 0.5, return_attn_probs=True)),
                    ("fa3", lambda: fa3.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)),
                    ("chunk", lambda: fa3.flash_attn_func(q, k, v, attention_chunk=2, return_attn_probs=True)),
                    ("packed", lambda: fa.flash_attn_varlen_func(*flat, *cu, rows, keys, return_attn_probs=True)),
                    ("cache", lambda: fa.flash_attn_with_kvcache(q, k, v, return_softmax_lse=True))):
                with self.subTest(name, batch=batch, rows=rows, keys=keys):
                    out, lse, *more = run()
                    whole = (batch * rows,) if name == "packed" else (batch, rows)
                    self.assertEqual(out.shape, (*whole, 4, 16))
                    self.assertEqual(out.count_nonzero(), 0)
                    self.assertEqual(lse.shape, (4, batch * rows) if name == "packed" else (batch, 4, rows))
                    self.assertTrue((lse == -torch.inf).all())
                    if name == "dropout":
                        self.assertEqual(more[0].shape, (batch, 4, rows, keys))
                    if name != "cache":
                        for t, gradient in zip((q, k, v), torch.autograd.grad(out.sum(), (q, k, v))):
                            self.assertEqual(gradient.shape, t.shape)
                            self.assertEqual(gradient.count_nonzero(), 0)

    def test_new_keys_are_written_where_nobody_asks_and_none_are_where_there_is_none(self):
        k_cache, v_cache, k, v = (one(2, n, 2, 8) for n in (6, 6, 3, 3))
        used = torch.tensor([1, 3], dtype=torch.int32)
        for named in ({}, {"rotary_cos": one(8, 4), "rotary_sin": one(8, 4), "causal": True}):
            with self.subTest(**named):
                some, none = ([t.clone() for t in (k_cache, v_cache)] for _ in range(2))
                fa.flash_attn_with_kvcache(one(2, 3, 4, 8), *some, k, v, cache_seqlens=used, **named)
                out = fa.flash_attn_with_kvcache(one(2, 0, 4, 8), *none, k, v, cache_seqlens=used, **named)
                self.assertEqual(out.shape, (2, 0, 4, 8))
                for mine, wanted in zip(none, some):
                    torch.testing.assert_close(mine, wanted)
                q, whole = one(2, 3, 4, 8), [t.clone() for t in (k_cache, v_cache)]
                if not named:  # without tables, empty new keys change nothing
                    got = fa.flash_attn_with_kvcache(q, *whole, k[:, :0], v[:, :0], cache_seqlens=used)
                    torch.testing.assert_close(got, fa.flash_attn_with_kvcache(q, *whole, cache_seqlens=used))
                for mine, wanted in zip(whole, (k_cache, v_cache)):
                    torch.testing.assert_close(mine, wanted)
        nobody = fa.flash_attn_with_kvcache(one(0, 1, 4, 8), *(one(0, 6, 2, 8) for _ in range(2)),
                                            *(one(0, 1, 2, 8) for _ in range(2)), cache_seqlens=0)
        self.assertEqual(nobody.shape, (0, 1, 4, 8))

    def test_flash_attn_reads_a_negated_view_as_pytorch_does(self):
        q, k, v = one(2, 5, 4, 8, grad=True), one(2, 7, 2, 8, grad=True), one(2, 7, 2, 8, grad=True)
        cu = [torch.arange(3, dtype=torch.int32) * n for n in (5, 7)]
        new, used = one(2, 1, 2, 8), torch.tensor([2, 3], dtype=torch.int32)
        for name, run in (
                ("fa2", lambda f: fa.flash_attn_func(f(q), f(k), f(v))),
                ("fa3", lambda f: fa3.flash_attn_func(f(q), f(k), f(v), causal=True)),
                ("packed", lambda f: fa.flash_attn_varlen_func(*(f(t.flatten(0, 1)) for t in (q, k, v)), *cu, 5, 7)),
                ("cache", lambda f: fa.flash_attn_with_kvcache(
                    f(q[:, :1]), k.detach().clone(), v.detach().clone(), f(new), f(new), cache_seqlens=used))):
            with self.subTest(name):
                got, wanted = run(torch._neg_view), run(torch.neg)
                torch.testing.assert_close(got, wanted, rtol=0, atol=0)
                if name != "cache":
                    for mine, true in zip(*(torch.autograd.grad(out.sum(), (q, k, v)) for out in (got, wanted))):
                        torch.testing.assert_close(mine, true, rtol=0, atol=0)
        with self.assertRaisesRegex(attune.Error, "k: a view that PyTorch negates"):  # an append would write it
            fa.flash_attn_with_kvcache(q[:, :1], torch._neg_view(k.detach()), v.detach(), new, new, cache_seqlens=used)


if __name__ == "__main__":
    unittest.main()
