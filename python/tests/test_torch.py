# SPDX-License-Identifier: Apache-2.0
"""attune.torch.attend: gradients, compilers, modes; on the CPU, and on a GPU if there is one."""

from __future__ import annotations

import importlib.util
import pathlib
import tempfile
import unittest

import needs

needs.pytorch()

import torch

import attune
import attune.torch as at
from attune import _spec
from attune.torch import _ops
from torch.utils.checkpoint import checkpoint

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def draw(*shapes, device="cpu", dtype=torch.float32, grad=True):
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(s, generator=generator).to(device, dtype).requires_grad_(grad) for s in shapes]


def dense(q, k, v, causal=False, bias=None, dtype=torch.float64):
    """By the definition, through autograd: (out, lse), for [batch, seq, head, dim]."""
    q, k, v = (t.to(dtype) for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[2] // k.shape[2], 2) for t in (k, v))
    scores = torch.einsum("bshd,bthd->bhst", q, k) * q.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias
    if causal:
        hidden = torch.ones(scores.shape[-2:], device=q.device).tril(scores.shape[-1] - scores.shape[-2]) == 0
        scores = scores.masked_fill(hidden, float("-inf"))
    return torch.einsum("bhst,bthd->bshd", scores.softmax(-1), v), scores.logsumexp(-1)


class Torch(unittest.TestCase):
    def near(self, got, wanted, tolerance=2e-5):
        torch.testing.assert_close(got.double(), wanted.double(), rtol=tolerance, atol=tolerance)

    def test_gradients_are_those_of_the_definition_also_through_lse(self):
        for device in DEVICES:
            for causal in (False, True):
                with self.subTest(device=device, causal=causal):
                    q, k, v, d = draw((2, 9, 4, 16), (2, 11, 2, 16), (2, 11, 2, 16), (2, 9, 4, 16), device=device)
                    out, lse = at.attend(q, k, v, causal=causal, return_lse=True)
                    wanted, wanted_lse = dense(q, k, v, causal)
                    self.near(out, wanted)
                    self.near(lse, wanted_lse)
                    d_lse = torch.linspace(-1, 1, lse.numel(), device=device).reshape(lse.shape)
                    got = torch.autograd.grad((out, lse), (q, k, v), (d, d_lse))
                    true = torch.autograd.grad((wanted, wanted_lse), (q, k, v), (d.double(), d_lse.double()))
                    for g, t in zip(got, true):
                        self.near(g, t, 1e-4)

    def test_only_wanted_gradients_come_back(self):
        q, k, v = draw((1, 4, 2, 8), (1, 4, 2, 8), (1, 4, 2, 8))
        k.requires_grad_(False)
        at.attend(q, k, v).sum().backward()
        self.assertIsNotNone(q.grad)
        self.assertIsNone(k.grad)

    def test_bias_and_sinks_have_gradients(self):
        q, k, v, bias = draw((2, 5, 2, 8), (2, 6, 2, 8), (2, 6, 2, 8), (1, 2, 5, 6))
        out = at.attend(q, k, v, bias=bias)
        wanted, _ = dense(q, k, v, bias=bias)
        self.near(out, wanted)
        got, true = (torch.autograd.grad(o.sum(), (q, bias))[1] for o in (out * out, wanted * wanted))
        self.near(got, true, 1e-4)
        (sinks,) = draw((2,))
        at.attend(q, k, v, sinks=sinks).sum().backward()
        self.assertEqual(sinks.grad.shape, sinks.shape)
        self.assertTrue(sinks.grad.abs().sum() > 0)

    def test_gradcheck_in_double_by_the_reference(self):
        q, k, v = draw((1, 5, 2, 4), (1, 6, 1, 4), (1, 6, 1, 4), dtype=torch.float64)
        self.assertTrue(torch.autograd.gradcheck(
            lambda *t: at.attend(*t, causal=True, backend="reference"), (q, k, v)))
        (bias,) = draw((1, 2, 5, 6), dtype=torch.float64)
        out = at.attend(q, k, v, bias=bias, backend="reference")
        got = torch.autograd.grad(out.square().sum(), bias)[0]
        true = torch.autograd.grad(dense(q, k, v, bias=bias)[0].square().sum(), bias)[0]
        self.assertEqual(got.dtype, torch.float64)
        self.near(got, true, 1e-5)

    def test_lengths_are_looked_at_without_lse_too(self):
        q, k, v = draw((1, 5, 2, 8), (1, 6, 2, 8), (1, 6, 2, 8), grad=False)
        for wrong in (dict(max_q=3), dict(max_k=-1)):
            with self.subTest(**wrong), self.assertRaises(attune.Error):
                at.attend(q, k, v, **wrong)

    def test_operators_are_clean(self):
        q, k, v = draw((2, 5, 2, 8), (2, 6, 2, 8), (2, 6, 2, 8))
        spec = _spec.spec("bshd", True, None, "no")
        numbers, lengths = [0.0, 0.0, 0.0], [0, 0]
        for none in ([], None):
            torch.library.opcheck(_ops.forward, (q, k, v, none, spec.text, numbers, lengths))
        out, lse, _ = _ops.forward(q.detach(), k.detach(), v.detach(), [], spec.text, numbers, lengths)
        torch.library.opcheck(_ops.backward, (torch.ones_like(out), None, q.detach(), k.detach(), v.detach(), out, lse,
                                              [], [], spec.text, numbers, lengths, []))
        new_k, new_v = draw((2, 1, 2, 8), (2, 1, 2, 8), grad=False)
        used = torch.tensor([3, 2], dtype=torch.int32)
        spec = _spec.Spec(causal=True, given=("used_k", "k_new", "v_new"))
        torch.library.opcheck(_ops.append, (q.detach()[:, :1].contiguous(), k.detach(), v.detach(),
                                            [used, new_k, new_v], spec.text, numbers, lengths))

    def test_a_compiled_function_has_one_graph_and_the_same_answer(self):
        for device in DEVICES:
            with self.subTest(device=device):
                q, k, v, bias = draw((2, 5, 2, 8), (2, 6, 2, 8), (2, 6, 2, 8), (1, 2, 5, 6), device=device)

                def layer(q, k, v, bias):
                    out, lse = at.attend(q * 2, k, v, causal=True, return_lse=True)
                    return out + at.attend(q, k, v, bias=bias), lse

                compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
                for got, true in zip(compiled(q, k, v, bias), layer(q, k, v, bias)):
                    self.near(got, true, 1e-6)
                got, true = (torch.autograd.grad(f(q, k, v, bias)[0].sum(), (q, k, v, bias)) for f in (compiled, layer))
                for g, t in zip(got, true):
                    self.near(g, t, 1e-5)

    def test_fake_tensors_have_the_shapes_and_strides_of_real_ones(self):
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            q, k, v = (torch.empty(2, 7, 4, 16).transpose(1, 2) for _ in range(3))
            out, lse = at.attend(q, k, v, layout="bhsd", return_lse=True)
        self.assertEqual((out.shape, out.stride(), lse.shape), ((2, 4, 7, 16), (448, 16, 64, 1), (2, 4, 7)))

    def test_meta_tensors_have_shapes_and_no_memory(self):
        out = at.attend(*(torch.empty(2, 7, 4, 16, device="meta") for _ in range(3)), causal=True)
        self.assertEqual((out.shape, out.device.type), ((2, 7, 4, 16), "meta"))

    def test_autocast_chooses_the_dtype(self):
        for device in DEVICES:
            q, k, v = draw((1, 4, 2, 16), (1, 4, 2, 16), (1, 4, 2, 16), device=device)
            with torch.autocast(device, dtype=torch.bfloat16):
                out = at.attend(q, k, v)
            self.assertEqual(out.dtype, torch.bfloat16)
            out.sum().backward()
            self.assertEqual(q.grad.dtype, torch.float32)

    def test_checkpointing_gives_the_same_gradients_with_dropout(self):
        q, k, v = draw((1, 8, 2, 8), (1, 8, 2, 8), (1, 8, 2, 8))

        def layer(q, k, v):
            return at.scaled_dot_product_attention(q, k, v, dropout_p=0.5)

        torch.manual_seed(3)
        plain = torch.autograd.grad(layer(q, k, v).sum(), q)[0]
        torch.manual_seed(3)
        again = torch.autograd.grad(checkpoint(layer, q, k, v, use_reentrant=False).sum(), q)[0]
        self.near(again, plain, 0)

    def test_a_tensor_that_changed_before_the_backward_is_caught(self):
        q, k, v = draw((1, 4, 2, 8), (1, 4, 2, 8), (1, 4, 2, 8))
        q = q * 1
        out = at.attend(q, k, v)
        q.add_(1)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            out.sum().backward()

    def test_deterministic_algorithms_ask_for_the_same_bits(self):
        q = torch.ones(1, 4, 1, 8)
        seen = []
        original = _ops.run

        def spy(spec, *rest, **named):
            seen.append(spec.reproducible)
            return original(spec, *rest, **named)

        _ops.run = spy
        try:
            torch.use_deterministic_algorithms(True)
            at.attend(q, q, q, return_lse=True)
            torch.use_deterministic_algorithms(False)
            at.attend(q, q, q, return_lse=True)
        finally:
            torch.use_deterministic_algorithms(False)
            _ops.run = original
        self.assertEqual(seen, ["run", "no"])

    def test_packed_sequences_have_gradients(self):
        q, k, v = draw((10, 2, 8), (10, 2, 8), (10, 2, 8))
        cu = torch.tensor([0, 4, 10], dtype=torch.int32)
        out = at.attend(q, k, v, layout="thd", causal=True, cu_q=cu, cu_k=cu, max_q=6, max_k=6)
        parts = [dense(q[None, a:b], k[None, a:b], v[None, a:b], True)[0][0] for a, b in ((0, 4), (4, 10))]
        wanted = torch.cat(parts)
        self.near(out, wanted)
        for g, t in zip(torch.autograd.grad(out.sum(), (q, k, v)), torch.autograd.grad(wanted.sum(), (q, k, v))):
            self.near(g, t, 1e-4)

    def test_an_append_writes_the_cache_and_has_no_gradient(self):
        q, k_new, v_new = draw((2, 1, 2, 8), (2, 1, 2, 8), (2, 1, 2, 8))
        k, v = draw((2, 6, 2, 8), (2, 6, 2, 8), grad=False)
        used = torch.tensor([2, 5], dtype=torch.int32)
        with self.assertRaisesRegex(attune.Error, "no gradient"):
            at.attend(q, k, v, causal=True, used_k=used, k_new=k_new, v_new=v_new)
        with torch.no_grad():
            out = at.attend(q, k, v, causal=True, used_k=used, k_new=k_new, v_new=v_new)
        for b, n in enumerate((2, 5)):
            self.near(k[b, n], k_new[b, 0], 0)
            self.near(out[b:b + 1], dense(q[b:b + 1], k[b:b + 1, :n + 1], v[b:b + 1, :n + 1])[0])

    def test_dilated_attention_has_gradients_in_a_compiler_too(self):
        q, k, v = draw((1, 32, 2, 8), (1, 32, 2, 8), (1, 32, 2, 8))
        named = dict(causal=True, variant="dilated rates=1,2 segments=8,16")
        eager = at.attend(q, k, v, **named)
        compiled = torch.compile(lambda *t: at.attend(*t, **named), fullgraph=True, backend="aot_eager")(q, k, v)
        self.near(compiled, eager, 1e-6)
        first = dense(q[:, :4], k[:, :4], v[:, :4], True)[0]
        self.assertEqual(eager.shape, q.shape)
        self.near(eager[:, 0], first[:, 0])
        for g, t in zip(*(torch.autograd.grad(o.sum(), (q, k, v)) for o in (compiled, eager))):
            self.near(g, t, 1e-5)

    def test_native_sparse_attention_has_gradients_of_gates_and_streams(self):
        shape = (1, 32, 2, 8)
        q, k, v, ks, vs, kw, vw, gates = draw((1, 32, 4, 8), *(shape,) * 6, (1, 32, 4, 3))
        streams = {0: ks, 1: vs, 2: kw, 3: vw, 4: gates}
        out = at.attend(q, k, v, causal=True, variant="nsa d=4 gate=sigmoid l=8 n=4 phi=mean s=8 w=8",
                        variant_tensors=streams)
        out.square().sum().backward()
        for n, t in enumerate((q, k, v, ks, vs, kw, vw, gates)):
            with self.subTest(n):
                self.assertTrue(t.grad.isfinite().all() and t.grad.abs().sum() > 0)
        with torch.no_grad():  # a step against the gradient reduces the sum
            moved = {n: t - 1e-3 * t.grad for n, t in streams.items()}
            less = at.attend(q, k, v, causal=True, variant="nsa d=4 gate=sigmoid l=8 n=4 phi=mean s=8 w=8",
                             variant_tensors=moved)
        self.assertLess(less.square().sum().item(), out.square().sum().item())

    def test_content_adaptive_blocks_train_their_scorer(self):
        q, k, v = draw((1, 32, 2, 8), (1, 40, 2, 8), (1, 40, 2, 8))
        shapes = ((1, 8, 1, 8), (1, 1, 1, 8), (1, 8, 1, 8), (1, 1, 1, 8), (1, 4, 1, 16), (1, 1, 1, 4), (1, 1, 1, 4),
                  (1, 1, 1, 1), (1, 1, 1, 1))
        for causal in (False, True):
            weights = dict(enumerate(draw(*shapes)))
            named = dict(causal=causal, variant="adaptive block=8 density=0.5 hidden=4", variant_tensors=weights)
            out, lse = at.attend(q, k, v, return_lse=True, **named)
            (out.square().sum() + lse.sum()).backward()
            self.assertTrue(all(t.grad.isfinite().all() for t in weights.values()))
            self.assertTrue(weights[6].grad.abs().sum() > 0)
            step, at_w2 = 1e-3, weights[6].detach()
            moved = {**weights, 6: at_w2 - step * weights[6].grad / weights[6].grad.norm()}
            with torch.no_grad():
                less, less_lse = at.attend(q, k, v, return_lse=True, **{**named, "variant_tensors": moved})
            fell = (out.square().sum() + lse.sum() - less.square().sum() - less_lse.sum()).item()
            self.assertAlmostEqual(fell / step / weights[6].grad.norm().item(), 1, delta=0.05)

    def test_a_variant_whose_saved_tensors_have_no_shape_is_refused_in_words(self):
        q = torch.randn(1, 32, 2, 8)
        cu = torch.tensor([0, 32], dtype=torch.int32)
        for variant, why in (
                ("nsa d=4 l=8 s=8 w=8", "nsa: n= is not given"), ("nsa", "nsa: n= is not given"),
                ("nsa foo", "'foo' is not name=value"), ("nsa n=4=5", "'n=4=5' is not name=value"),
                ("nsa n=x", "n=x is not in 3 ... 4096"), ("nsa n=-3", "n=-3 is not in 3 ... 4096"),
                ("nsa n=99999999999999", "n=99999999999999 is not in 3 ... 4096"),
                ("adaptive foo", "'foo' is not name=value"), ("adaptive block=0", "block=0 is not in 1 ... 1048576"),
                ("adaptive block=x", "block=x is not in 1 ... 1048576"),
                ("adaptive density=nan", "density=nan is not in 0 ... 1"),
                ("adaptive density=1e300", "density=1e300 is not in 0 ... 1")):
            with self.subTest(variant), self.assertRaisesRegex(attune.Error, why.replace(".", "[.]")):
                at.attend(q, q, q, causal=True, variant=variant)
        for keys, named in ((q[0], dict(cu_k=cu)), (q, {})):
            with self.assertRaisesRegex(attune.Error, "'thd'.*attune.attend takes packed sequences"):
                at.attend(q[0], keys, keys, layout="thd", cu_q=cu, variant="adaptive block=8", **named)
        for given in ((q[0, 0], q, q), (q, q[0, 0, 0], q), (q, q, q[0, 0])):
            with self.assertRaisesRegex(attune.Error, "axes, and layout 'bshd' has 4"):
                at.attend(*given, causal=True, variant="nsa d=4 gate=sigmoid l=8 n=4 phi=mean s=8 w=8")

    def test_a_block_list_hides_what_it_does_not_list(self):
        q, k, v = draw((1, 16, 2, 8), (1, 16, 2, 8), (1, 16, 2, 8))
        begin = torch.tensor([[[0, 1, 3]]], dtype=torch.int32)
        column = torch.tensor([0, 0, 1], dtype=torch.int32)
        out = at.attend(q, k, v, block_size=(8, 8), block_begin=begin, block_column=column)
        hidden = torch.zeros(16, 16)
        hidden[:8, 8:] = float("-inf")
        wanted, _ = dense(q, k, v, bias=hidden)
        self.near(out, wanted)
        for g, t in zip(torch.autograd.grad(out.sum(), (q, k, v)), torch.autograd.grad(wanted.sum(), (q, k, v))):
            self.near(g, t, 1e-4)

    def test_the_call_for_every_framework_does_not_lose_a_gradient(self):
        q, k, v, bias = draw((1, 4, 2, 8), (1, 4, 2, 8), (1, 4, 2, 8), (1, 2, 4, 4))
        plain = [t.detach() for t in (q, k, v)]
        for tensors, named in (((q, *plain[1:]), {}), ((plain[0], k, plain[2]), {}), (plain, {"bias": bias})):
            with self.assertRaisesRegex(attune.Error, "attune.attend has no gradient: use attune.torch.attend"):
                attune.attend(*tensors, **named)
            with torch.no_grad():
                wanted = at.attend(*tensors, **named)
                self.near(attune.attend(*tensors, **named), wanted, 0)

    def test_rows_in_no_sequence_are_zero_and_weigh_nothing(self):
        q, k, v = draw((2, 5, 2, 8), (2, 5, 2, 8), (2, 5, 2, 8), grad=False)
        packed = [t.reshape(10, 2, 8) for t in (q, k, v)]
        cu = torch.tensor([0, 4, 7], dtype=torch.int32)
        original, _ops.empty_lse = _ops.empty_lse, lambda *a: original(*a).fill_(7)
        first, _ops.empty_out = _ops.empty_out, lambda *a: first(*a).fill_(7)
        try:
            out, lse = at.attend(q, k, v, used_q=torch.tensor([3, 5], dtype=torch.int32), return_lse=True)
            tail, tail_lse = at.attend(*packed, layout="thd", cu_q=cu, cu_k=cu, max_q=4, max_k=4, return_lse=True)
        finally:
            _ops.empty_lse, _ops.empty_out = original, first
        self.assertEqual(out[0, 3:].abs().max(), 0)
        self.assertTrue((lse[0, :, 3:] == -torch.inf).all())
        self.assertEqual(tail[7:].abs().max(), 0)
        self.assertTrue((tail_lse[:, 7:] == -torch.inf).all())

    def test_an_append_never_goes_into_a_copy(self):
        q, k_new, v_new = draw((2, 1, 2, 8), (2, 1, 2, 8), (2, 1, 2, 8), grad=False)
        k, v = draw((2, 6, 2, 8), (2, 6, 2, 8), grad=False)
        used = torch.tensor([2, 5], dtype=torch.int32)
        half = [t.bfloat16() for t in (k, v, k_new, v_new)]
        with torch.autocast("cpu", torch.bfloat16):
            at.attend(q, *half[:2], used_k=used, k_new=half[2], v_new=half[3])
            self.near(half[0][0, 2], half[2][0, 0], 0)
            before = k.clone()
            with self.assertRaises(attune.Error):
                at.attend(q, k, v, used_k=used, k_new=half[2], v_new=half[3])
            self.near(k, before, 0)

    def test_a_scale_of_0_is_refused(self):
        q, = draw((1, 4, 2, 8), grad=False)
        for named in ({}, {"softcap": 2.0}):
            for scale in (0.0, 1e-50, 2.36e38):  # 0 in f32 means the default
                with self.subTest(scale, **named), self.assertRaisesRegex(attune.Error, "scale .* is not a number"):
                    at.attend(q, q, q, scale=scale, **named)

    def test_a_forward_derivative_is_refused_and_not_dropped(self):
        q, = draw((1, 4, 2, 8), grad=False)
        with self.assertRaisesRegex(attune.Error, "forward derivatives"):
            torch.func.jvp(lambda q: at.attend(q, q, q), (q,), (q,))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(q, q)
            with self.assertRaisesRegex(attune.Error, "forward derivatives"):
                at.attend(q, dual, q)
            at.attend(q, q, q)

    def test_a_second_derivative_is_refused_and_not_dropped(self):
        q, k, v = draw((1, 4, 2, 8), (1, 4, 2, 8), (1, 4, 2, 8))
        for named in ({}, {"return_lse": True}):
            def first(named=named):
                out = at.attend(q, k, v, **named)
                return torch.autograd.grad((out[1] if named else out).sum(), q, create_graph=True)[0]

            with self.assertRaisesRegex(attune.Error, "no second derivative"):
                (first().square().sum() + q.sum()).backward()
            with self.assertRaisesRegex(attune.Error, "no second derivative"):
                torch.autograd.grad(first().sum(), k, allow_unused=True)
        plain, = torch.autograd.grad(at.attend(q, k, v).sum(), q)
        out = checkpoint(lambda *t: at.attend(*t), q, k, v, use_reentrant=False).sum()
        self.near(torch.autograd.grad(out, q, create_graph=True)[0], plain, 0)

    def test_what_cannot_see_into_a_call_is_refused_in_a_sentence(self):
        q, = draw((1, 4, 2, 8), grad=False)
        several = torch.stack([q, q])
        for what, sentence, run in (
                ("vmap", "transforms of torch.func", lambda: torch.func.vmap(lambda q: at.attend(q, q, q))(several)),
                ("grad", "transforms of torch.func", lambda: torch.func.grad(lambda q: at.attend(q, q, q).sum())(q)),
                ("trace", "torch.jit.trace is not served", lambda: torch.jit.trace(lambda q: at.attend(q, q, q), (q,))),
                ("nested", "nested tensors are not served",
                 lambda: at.attend(*(torch.nested.nested_tensor([q[0], q[0, :3]]),) * 3)),
                ("jagged", "nested tensors are not served",
                 lambda: at.attend(*(torch.nested.nested_tensor([q[0], q[0, :3]], layout=torch.jagged),) * 3))):
            with self.subTest(what), self.assertRaisesRegex(attune.Error, sentence):
                run()
        self.near(torch.func.functionalize(lambda q: at.attend(q, q, q))(q), at.attend(q, q, q), 0)
        leaf = q.clone().requires_grad_()
        with self.assertRaisesRegex(attune.Error, "is_grads_batched"):
            torch.autograd.grad(at.attend(leaf, q, q), leaf, several, is_grads_batched=True)

    def test_what_is_no_tensor_is_named(self):
        q, = draw((1, 4, 2, 8), grad=False)
        for given, named, sentence in (((q, None, q), {}, "k: <class 'NoneType'>"),
                                       (([1.0], q, q), {}, "q: <class 'list'>"),
                                       ((q, q, q), dict(dropout=0.5, seed=3), "seed: <class 'int'>"),
                                       ((q[0],) * 3, dict(layout="thd", cu_q=[0, 4]), "cu_q: <class 'list'>")):
            with self.subTest(sentence), self.assertRaisesRegex(attune.Error, f"{sentence} is not a tensor of PyTorch"):
                at.attend(*given, **named)
        self.near(at.attend(q, q, q, window=[2, 0]), at.attend(q, q, q, window=(2, 0)), 0)

    def test_the_example_trains_alike_with_every_attention_and_draws_it(self):
        path = pathlib.Path(__file__).resolve().parents[2] / "examples" / "train_gpt.py"
        spec = importlib.util.spec_from_file_location("train_gpt", path)
        example = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(example)
        text = torch.tensor(list(path.read_bytes()))
        curves = {name: example.train(attention, text, 4, "cpu") for name, attention in example.BACKENDS.items()}
        self.assertLess(curves["definition"][-1], curves["definition"][0])
        for name, losses in curves.items():
            torch.testing.assert_close(losses, curves["definition"], rtol=1e-4, atol=1e-4, msg=name)
        with tempfile.TemporaryDirectory() as folder:
            example.plot(curves, pathlib.Path(folder) / "curves.svg")
            self.assertEqual((pathlib.Path(folder) / "curves.svg").read_text().count("<polyline"), len(curves))

    def test_slopes_have_no_gradient(self):
        q, slopes = draw((1, 4, 2, 8), (2,))
        with self.assertRaisesRegex(attune.Error, "slopes have no gradient"):
            at.attend(q, q, q, slopes=slopes)
        at.attend(q, q, q, slopes=slopes.detach())

    def test_tensors_on_different_devices_are_refused(self):
        q, k, v = draw((1, 4, 2, 8), (1, 4, 2, 8), (1, 4, 2, 8), grad=False)
        with self.assertRaises((attune.Error, RuntimeError, BufferError, NotImplementedError)):
            at.attend(q, k.to("meta"), v)

    @unittest.skipIf("cuda" not in DEVICES, "no GPU is here")
    def test_a_cuda_graph_replays_with_new_numbers(self):
        q, k, v = draw((1, 64, 2, 64), (1, 64, 2, 64), (1, 64, 2, 64), device="cuda", dtype=torch.bfloat16, grad=False)
        at.attend(q, k, v, causal=True)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = at.attend(q, k, v, causal=True)
        q.copy_(torch.randn_like(q))
        graph.replay()
        self.near(out, at.attend(q, k, v, causal=True), 0)

    @unittest.skipIf("cuda" not in DEVICES, "no GPU is here")
    def test_a_call_is_on_the_current_stream(self):
        q, k, v = draw((1, 64, 2, 64), (1, 64, 2, 64), (1, 64, 2, 64), device="cuda", dtype=torch.bfloat16, grad=False)
        wanted = at.attend(q, k, v)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            k2 = k.clone()
            out = at.attend(q, k2, v)
        stream.synchronize()
        self.near(out, wanted, 0)


if __name__ == "__main__":
    unittest.main()
