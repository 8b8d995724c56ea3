# SPDX-License-Identifier: Apache-2.0
"""attune.torch.scaled_dot_product_attention compared with PyTorch's: every broadcast of a mask, every form of the call.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import unittest

import needs

needs.pytorch()

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import attune
import attune.torch as at
from attune.torch import _route, _sdpa
from torch.utils.checkpoint import checkpoint

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
theirs = F.scaled_dot_product_attention


class Sdpa(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)
        at.counters.clear()
        _route._on[:] = ["measured"]  # tests call _routed, which is PyTorch's where nothing is installed
        self.addCleanup(at.uninstall)

    def same(self, *tensors, by="attune", **named):
        before = getattr(at.counters, by)
        with sdpa_kernel(SDPBackend.MATH):  # PyTorch's other kernels do not accept every mask
            wanted = theirs(*tensors, **named)
        got = at.scaled_dot_product_attention(*tensors, **named)
        self.assertEqual(wanted.shape, got.shape)
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=2e-5)
        self.assertEqual(getattr(at.counters, by), before + 1, at.counters)
        return wanted, got

    def test_masks_of_every_broadcast_shape(self):
        for device in DEVICES:
            q, k, v = (torch.randn(s, device=device) for s in ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 16)))
            shapes = [*itertools.product((1, 2), (1, 4), (1, 5), (1, 7)), (5, 7), (1, 7), (4, 5, 7), (1, 5, 7), (7,),
                      (1,)]
            for shape in shapes:
                with self.subTest(device=device, shape=shape):
                    mask = torch.randn(shape, device=device)
                    self.same(q, k, v, attn_mask=mask)
                    self.same(q, k, v, attn_mask=mask > 0)

    def test_a_mask_may_be_any_view(self):
        q, k, v = (torch.randn(s) for s in ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8)))
        self.same(q, k, v, attn_mask=torch.randn(7, 5).t())
        self.same(q, k, v, attn_mask=torch.randn(1, 1, 1, 7).expand(2, 4, 5, 7))

    def test_causal_begins_at_the_first_key(self):
        for len_q, len_k in ((5, 7), (7, 5), (6, 6)):
            self.same(torch.randn(2, 3, len_q, 8), torch.randn(2, 3, len_k, 8), torch.randn(2, 3, len_k, 8),
                      is_causal=True)

    def test_a_row_that_sees_nothing_is_zero(self):
        q, k, v = (torch.randn(1, 2, 4, 8) for _ in range(3))
        mask = torch.ones(4, 4, dtype=torch.bool)
        mask[2] = False
        _, got = self.same(q, k, v, attn_mask=mask)
        self.assertEqual(got[:, :, 2].abs().max(), 0)

    def test_heads_may_be_grouped_only_when_asked(self):
        q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8)
        self.same(q, k, v, enable_gqa=True)
        self.same(q, k, v, enable_gqa=True, is_causal=True, scale=0.4)
        with self.assertRaises(RuntimeError):
            at.scaled_dot_product_attention(q, k, v)

    def test_tensors_of_two_to_five_axes(self):
        q, k, v = torch.randn(2, 3, 4, 5, 8), torch.randn(2, 3, 4, 7, 8), torch.randn(2, 3, 4, 7, 8)
        for n in range(4):
            with self.subTest(axes=5 - n):
                at_n = tuple(t[(0,) * n] for t in (q, k, v))
                self.same(*at_n)
                self.same(*at_n, attn_mask=torch.randn(5, 7) > 0)
        self.same(q, k, v, attn_mask=torch.randn(2, 1, 1, 5, 7))
        self.same(q[0, 0], k[0, 0], v[0, 0], attn_mask=torch.randn(4, 5, 7))

    def test_leading_axes_broadcast(self):
        q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8), torch.randn(2, 4, 7, 8)
        self.same(q[:1], k, v)
        self.same(q[:, :1], k, v)
        self.same(q, k[:1], v[:1])

    def test_gradients_are_pytorchs(self):
        for device in DEVICES:
            mask = torch.randn(2, 1, 5, 7, device=device, requires_grad=True)
            q, k, v = (torch.randn(s, device=device, requires_grad=True) for s in ((2, 4, 5, 8), (2, 4, 7, 8),
                                                                                  (2, 4, 7, 8)))
            for named in ({}, {"is_causal": True}, {"attn_mask": mask}):
                with self.subTest(device=device, **{name: True for name in named}):
                    inputs = (q, k, v, mask) if "attn_mask" in named else (q, k, v)
                    wanted, got = self.same(q, k, v, **named)
                    d = torch.randn_like(wanted)
                    for g, w in zip(torch.autograd.grad(got, inputs, d), torch.autograd.grad(wanted, inputs, d)):
                        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-4)

    def test_dropout_keeps_the_mean_and_follows_the_seed(self):
        q = torch.zeros(1, 1, 64, 8)
        v = torch.ones(1, 1, 256, 8)
        k = torch.zeros(1, 1, 256, 8)
        torch.manual_seed(5)
        first = at.scaled_dot_product_attention(q, k, v, dropout_p=0.3)
        torch.manual_seed(5)
        self.assertTrue(torch.equal(first, at.scaled_dot_product_attention(q, k, v, dropout_p=0.3)))
        self.assertFalse(torch.equal(first, at.scaled_dot_product_attention(q, k, v, dropout_p=0.3)))
        self.assertAlmostEqual(first.mean().item(), 1, delta=0.02)

    def test_the_signature_is_pytorchs(self):
        given = inspect.signature(at.scaled_dot_product_attention).parameters.values()
        self.assertEqual([p.name for p in given if p.kind == p.POSITIONAL_OR_KEYWORD],
                         ["query", "key", "value", "attn_mask", "dropout_p", "is_causal"])
        self.assertEqual([p.name for p in given if p.kind == p.KEYWORD_ONLY], ["scale", "enable_gqa"])

    def test_what_attune_does_not_serve_goes_to_pytorch_and_is_counted(self):
        q = torch.randn(1, 2, 4, 8, dtype=torch.float64)
        self.same(q, q, q, by="torch")
        self.assertEqual(at.counters.why, {"dtype torch.float64": 1})
        q = torch.randn(1, 2, 4, 8)
        with contextlib.suppress(RuntimeError):  # an error in most versions of PyTorch
            at.scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(4, 4) > 0, is_causal=True)
        self.assertEqual(at.counters.why["attn_mask beside is_causal"], 1)
        for scale in (1e-50, 2.36e38):  # the first rounds to 0 in f32, which means 1/sqrt(dim) to attune
            at.scaled_dot_product_attention(q, q, q, scale=scale)
            self.assertEqual(at.counters.why[f"scale {scale}"], 1)
        self.same(q, q, q, by="torch", scale=1e-50)

    def test_a_form_that_was_served_does_not_hide_what_is_wrong_with_the_next_call(self):
        q = torch.randn(1, 2, 4, 8)
        self.same(q, q, q)
        self.same(q, q, q)
        self.same(*(q.double() for _ in range(3)), by="torch")
        with self.assertRaises(RuntimeError):
            at.scaled_dot_product_attention(q, q.double(), q)

    def test_installed_serves_other_peoples_modules_and_leaves_nothing_behind(self):
        layer = torch.nn.MultiheadAttention(16, 2, batch_first=True)
        x = torch.randn(2, 5, 16)
        wanted = layer(x, x, x, need_weights=False)[0]
        with at.installed("always") as counters:
            got = layer(x, x, x, need_weights=False)[0]
        self.assertEqual((counters.attune, counters.torch), (1, 0))
        self.assertIs(F.scaled_dot_product_attention, theirs)
        torch.testing.assert_close(got, wanted)

    def test_who_chooses_among_pytorchs_backends_gets_pytorch(self):
        q = torch.randn(1, 2, 8, 16)
        for route in ("measured", "always"):
            at.counters.clear()
            with at.installed(route) as counters, sdpa_kernel(SDPBackend.MATH):
                torch.testing.assert_close(F.scaled_dot_product_attention(q, q, q), theirs(q, q, q))
            self.assertEqual((counters.attune, dict(counters.why)), (0, {"a choice among PyTorch's backends": 1}))
        self.addCleanup(torch.backends.cuda.enable_cudnn_sdp, torch.backends.cuda.cudnn_sdp_enabled())
        torch.backends.cuda.enable_cudnn_sdp(not torch.backends.cuda.cudnn_sdp_enabled())  # permanently
        with at.installed("always") as counters:
            F.scaled_dot_product_attention(q, q, q)
        self.assertEqual(counters.attune, 1)

    def test_measured_routes_every_call_and_gives_the_same_answer(self):
        q, k, v = (torch.randn(1, 2, 32, 16) for _ in range(3))
        with at.installed() as counters:
            first, second = (F.scaled_dot_product_attention(q, k, v, is_causal=True) for _ in range(2))
        self.assertEqual(counters.attune + counters.torch, 2)
        self.assertIn(0, (counters.attune, counters.torch))
        torch.testing.assert_close(first, theirs(q, k, v, is_causal=True))
        torch.testing.assert_close(second, first)

    def test_a_mask_of_other_rows_or_keys_is_pytorchs_error(self):
        q, k = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 7, 8)
        for shape in ((7, 7), (1, 1, 7, 7), (1, 9), (1, 2, 1, 8)):
            for route in (at.scaled_dot_product_attention, _route._routed):
                with self.subTest(shape=shape, route=route.__name__), self.assertRaises(RuntimeError):
                    route(q, k, k, attn_mask=torch.zeros(shape))

    def test_nested_tensors_of_strides_go_to_pytorch(self):
        q = torch.nested.nested_tensor([torch.randn(2, 3, 8), torch.randn(2, 5, 8)])
        for route in (at.scaled_dot_product_attention, _route._routed):
            out = route(q, q, q)
            torch.testing.assert_close(out.unbind()[1], theirs(*(q.unbind()[1][None],) * 3)[0])
        self.assertEqual(at.counters.why, {"nested tensors": 2})

    def test_tensors_that_attune_does_not_know_go_to_pytorch(self):
        class Mine(torch.Tensor):
            pass

        q = torch.randn(1, 2, 4, 8)
        self.same(q.as_subclass(Mine), q, q, by="torch")
        self.assertEqual(at.counters.why, {"a tensor of type Mine": 1})

    def test_biases_of_pytorch_begin_or_end_where_they_say(self):
        for device in DEVICES:
            q, k, v = (torch.randn(2, 4, n, 8, device=device, requires_grad=True) for n in (5, 7, 7))
            for make, diagonal in ((causal_upper_left, 0), (causal_lower_right, 2)):
                mask = torch.ones(5, 7, dtype=torch.bool, device=device).tril(diagonal)
                wanted = theirs(q, k, v, mask)
                gradients = torch.autograd.grad(wanted.sum(), (q, k, v))
                compiled = torch.compile(lambda *t: F.scaled_dot_product_attention(*t), backend="eager", fullgraph=True)
                for route, function in ((None, at.scaled_dot_product_attention), ("always", None), ("measured", None),
                                        ("always", compiled)):
                    with self.subTest(device=device, diagonal=diagonal, route=route), \
                            at.installed(route) if route else contextlib.nullcontext():
                        out = (function or F.scaled_dot_product_attention)(q, k, v, make(5, 7))
                        torch.testing.assert_close(out, wanted, rtol=1e-4, atol=2e-5)
                        for g, t in zip(torch.autograd.grad(out.sum(), (q, k, v)), gradients):
                            torch.testing.assert_close(g, t, rtol=1e-4, atol=1e-4)
                with at.installed("always"):  # calls that attune leaves to PyTorch
                    for function in (F.scaled_dot_product_attention, compiled):
                        doubles = [t.double() for t in (q, k, v)]
                        torch.testing.assert_close(function(*doubles, make(5, 7)), theirs(*doubles, mask))
        with self.assertRaisesRegex(ValueError, "CausalBias should not be used"):
            at.scaled_dot_product_attention(q, k, v, causal_upper_left(5, 7), is_causal=True)

    def test_a_subclass_that_knows_the_function_by_its_name_is_asked(self):
        class Answer(torch.Tensor):
            @classmethod
            def __torch_function__(cls, func, types, args=(), kwargs=None):
                if func is F.scaled_dot_product_attention:
                    return "its own"
                return super().__torch_function__(func, types, args, kwargs or {})

        q = torch.randn(1, 2, 3, 8)
        with at.installed("always"):
            mine = F.scaled_dot_product_attention
            self.assertEqual(F.scaled_dot_product_attention(q, q, q, torch.zeros(3, 3).as_subclass(Answer)), "its own")
            self.assertIs(F.scaled_dot_product_attention, mine)
        self.assertIs(F.scaled_dot_product_attention, theirs)

    def test_a_batch_of_which_a_compiler_knows_nothing_is_pytorchs(self):
        class Model(torch.nn.Module):
            def forward(self, x):
                x = x[x.sum((1, 2, 3)) != 0]
                return F.scaled_dot_product_attention(x, x, x, torch.ones(x.shape[0], 1, 1, 1, dtype=torch.bool))

        x = torch.randn(3, 2, 4, 8)
        x[1] = 0
        try:
            torch.export.export(Model(), (x,))
        except Exception:
            self.skipTest("this PyTorch cannot itself")
        with at.installed("always"):
            program = torch.export.export(Model(), (x,))
        torch.testing.assert_close(program.module()(x), theirs(x[::2], x[::2], x[::2]))

    def test_a_script_of_a_module_has_pytorchs(self):
        layer = torch.nn.MultiheadAttention(16, 2, batch_first=True)
        x = torch.randn(2, 5, 16)
        for route in ("always", "measured"):
            with at.installed(route):
                got = torch.jit.script(layer)(x, x, x, need_weights=False)[0]
            torch.testing.assert_close(got, layer(x, x, x, need_weights=False)[0])

    def test_a_trace_goes_to_pytorch(self):
        q = torch.randn(1, 2, 5, 8)
        for route in ("always", "measured"):  # nothing is timed while a program is traced either
            with self.subTest(route), at.installed(route) as counters:
                counters.clear()
                traced = torch.jit.trace(lambda q: F.scaled_dot_product_attention(q, q, q), (torch.randn(1, 2, 5, 8),),
                                         check_trace=False)
                self.assertEqual(dict(counters.why), {"torch.jit.trace": 1})
            torch.testing.assert_close(traced(q), theirs(q, q, q))

    def test_transforms_of_functions_go_to_pytorch(self):
        q = torch.randn(1, 2, 4, 8)
        for route in (at.scaled_dot_product_attention, _route._routed):
            for transform in (torch.func.grad, lambda f: lambda q: torch.func.jvp(f, (q,), (q,))[1]):
                with sdpa_kernel(SDPBackend.MATH):  # the only one with a forward-mode derivative
                    wanted = transform(lambda q: theirs(q, q, q).square().sum())(q)
                    got = transform(lambda q: route(q, q, q).square().sum())(q)
                torch.testing.assert_close(got, wanted)

    def test_a_compiled_call_takes_masks_of_changing_lengths(self):
        compiled = torch.compile(lambda q, k, m: at.scaled_dot_product_attention(q, k, k, attn_mask=m), dynamic=True,
                                 fullgraph=True, backend="aot_eager")
        q = torch.randn(1, 2, 3, 8)
        for length in (5, 9):
            k, mask = torch.randn(1, 2, length, 8), torch.randn(3, length)
            torch.testing.assert_close(compiled(q, k, mask), theirs(q, k, k, attn_mask=mask), rtol=1e-4, atol=1e-5)

    def test_grouped_heads_of_three_axes_are_pytorchs(self):
        q, k = torch.randn(4, 5, 8), torch.randn(2, 7, 8)
        self.same(q, k, k, enable_gqa=True, by="torch")

    def test_a_negative_scale_is_pytorchs_in_a_compiler_too(self):
        q = torch.randn(1, 2, 4, 8)

        def layer(q):
            return at.scaled_dot_product_attention(q, q, q, scale=-0.5)

        for run in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
            torch.testing.assert_close(run(q), theirs(q, q, q, scale=-0.5))

    def test_measuring_does_not_disturb_a_checkpoint(self):
        q, k, v = (torch.randn(1, 2, 24, 16, requires_grad=True) for _ in range(3))
        _route._faster.clear()
        with at.installed():
            out = checkpoint(lambda *t: F.scaled_dot_product_attention(*t), q, k, v, use_reentrant=False)
            got = torch.autograd.grad(out.sum(), (q, k, v))
        for g, w in zip(got, torch.autograd.grad(theirs(q, k, v).sum(), (q, k, v))):
            torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-5)

    def test_a_growing_cache_is_measured_once_for_each_doubling(self):
        measured = []
        original, _route._measure = _route._measure, lambda *a: measured.append(a) or False
        most, _sdpa.MOST = _sdpa.MOST, 3
        try:
            _route._faster.clear()
            for length in range(1, 33):
                q, k = torch.randn(1, 2, 1, 8), torch.randn(1, 2, length, 8)
                _route._routed(q, k, k, attn_mask=torch.zeros(1, length))
            self.assertEqual(len(measured), 6)  # 1, 2, 4, 8, 16, 32
            self.assertLessEqual(len(_route._faster), 3)
        finally:
            _route._measure, _sdpa.MOST = original, most
            _route._faster.clear()

    def test_what_was_measured_for_a_shape_holds_for_the_next_call_and_for_no_other(self):
        measured = []
        original, _route._measure = _route._measure, lambda *a: measured.append(a[0].dtype) or True
        try:
            _route._faster.clear()
            q, k = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 6, 8)
            for _ in range(3):
                torch.testing.assert_close(_route._routed(q, k, k, is_causal=True), theirs(q, k, k, is_causal=True))
            self.assertEqual((len(measured), at.counters.attune, at.counters.torch), (1, 3, 0))
            for named in ({}, {"is_causal": True}):  # the previous call does not hide errors of this one
                with self.assertRaises(RuntimeError):
                    _route._routed(q, k.double(), k, **named)
            with self.assertRaises(RuntimeError):
                _route._routed(q, k[..., :4], k, is_causal=True)
            _route._routed(q.bfloat16(), k.bfloat16(), k.bfloat16(), is_causal=True)
            _route._routed(q.requires_grad_(), k, k, is_causal=True)
            self.assertEqual(measured, [torch.float32, torch.bfloat16, torch.float32])
            with sdpa_kernel(SDPBackend.MATH):
                _route._routed(q, k, k, is_causal=True)
            self.assertEqual(at.counters.why["a choice among PyTorch's backends"], 1)
            with torch.autocast("cpu", torch.bfloat16):
                self.assertEqual(_route._routed(q, k, k, is_causal=True).dtype, torch.bfloat16)
            _route._measure = lambda *a: False
            _route._faster.clear()
            at.counters.clear()
            for _ in range(2):
                torch.testing.assert_close(_route._routed(q, k, k), theirs(q, k, k))
            self.assertEqual((at.counters.attune, dict(at.counters.why)), (0, {"measured slower": 2}))
        finally:
            _route._measure = original
            _route._faster.clear()

    def test_a_compiled_program_has_whichever_is_measured_faster(self):
        graphs, measured = [], []

        def backend(graph, _):
            graphs.append("attune" in graph.code)
            return graph

        q, k = torch.randn(1, 2, 5, 8), torch.randn(3, 9, 2, 8).transpose(1, 2)
        original = _route._measure
        try:
            for faster in (True, False):
                _route._faster.clear()
                _route._measure = lambda *a: measured.append(a) or faster
                for given, named in (((q, q, q), {"is_causal": True}), ((k, k, k), {}),
                                     ((q, q, q, torch.zeros(5, 5)), {}), ((q, q, q, causal_upper_left(5, 5)), {})):
                    wanted = theirs(*given, **named)
                    with self.subTest(faster=faster, given=len(given), **named), at.installed():
                        torch._dynamo.reset()
                        compiled = torch.compile(lambda *t: F.scaled_dot_product_attention(*t, **named),
                                                 backend=backend, fullgraph=True)
                        torch.testing.assert_close(compiled(*given), wanted, rtol=1e-4, atol=1e-5)
                        self.assertEqual(graphs[-1], faster)
                        asked = measured[-1]
                        self.assertEqual(asked[0].shape, (1, 2, 8, 8) if given[0] is q else (2, 2, 16, 8))
                        self.assertEqual(asked[0].stride(1) < asked[0].stride(2), given[0] is k)
            self.assertEqual(len(measured), 8)
        finally:
            _route._measure = original
            _route._faster.clear()

    def test_a_compiled_program_of_changing_lengths_is_measured_for_each_doubling(self):
        measured = []
        original, _route._measure = _route._measure, lambda *a: measured.append(a[1].shape[2]) or True
        try:
            _route._faster.clear()
            torch._dynamo.reset()
            with at.installed():
                compiled = torch.compile(lambda q, k: F.scaled_dot_product_attention(q, k, k), dynamic=True,
                                         backend="aot_eager", fullgraph=True)
                q = torch.randn(1, 2, 3, 8)
                for length in (9, 12, 16, 17, 30, 10):
                    k = torch.randn(1, 2, length, 8)
                    torch.testing.assert_close(compiled(q, k), theirs(q, k, k), rtol=1e-4, atol=1e-5)
            self.assertEqual(measured, [16, 32])
        finally:
            _route._measure = original
            _route._faster.clear()

    def test_a_compiled_program_is_measured_by_what_it_calls(self):
        q = torch.randn(2, 2, 16, 8, requires_grad=True)
        seen = []
        original, _sdpa.by_attune = _sdpa.by_attune, lambda *a: seen.append(a[9:10]) or original(*a)
        try:
            _route._faster.clear()
            torch._dynamo.reset()
            with at.installed():
                state = torch.get_rng_state()
                compiled = torch.compile(lambda q: F.scaled_dot_product_attention(q, q, q), backend="aot_eager",
                                         fullgraph=True)
                out = compiled(q)
                self.assertTrue(torch.equal(state, torch.get_rng_state()))
            self.assertEqual(seen[0], (False,))  # through operators
            torch.testing.assert_close(torch.autograd.grad(out.sum(), q), torch.autograd.grad(theirs(q, q, q).sum(), q))
        finally:
            _sdpa.by_attune = original
            _route._faster.clear()

    def test_who_runs_out_of_memory_is_not_the_faster_one(self):
        def without(*_, **__):
            raise torch.OutOfMemoryError("full")

        q = torch.randn(1, 2, 4, 8)
        given = (q, q, q, None, 0.0, False, None, False, False)
        for name, faster in (("by_attune", False), ("_torch_sdpa", True)):
            original = getattr(_sdpa, name)
            setattr(_sdpa, name, without)
            try:
                self.assertEqual(_route._measure(*given), faster)
            finally:
                setattr(_sdpa, name, original)

    def test_a_route_that_nobody_knows_is_refused(self):
        with self.assertRaisesRegex(attune.Error, "route 'never' is not one of"):
            at.install("never")

    def test_a_compiled_call_has_one_graph(self):
        q, k, v = (torch.randn(1, 2, 8, 16, requires_grad=True) for _ in range(3))
        mask = torch.randn(8, 8) > 0

        def layer(q, k, v):
            return at.scaled_dot_product_attention(q, k, v, attn_mask=mask)

        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(q, k, v), layer(q, k, v))


if __name__ == "__main__":
    unittest.main()
