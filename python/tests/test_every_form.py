# SPDX-License-Identifier: Apache-2.0
"""Guarantees of attune.torch for every form of a call: gradients that match slopes in double, valid operators, the same
result when compiled, checkpointed or captured in a graph, the dtype of autocast, and detection of in-place changes."""

from __future__ import annotations

import tempfile
import unittest
import unittest.mock
import warnings

import needs

needs.pytorch()

import torch
import torch._inductor.config
from torch.utils.checkpoint import checkpoint

import attune.torch as at
import forms
from attune import _spec
from attune.torch import _ops

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


def leaves(tensors):
    return {name: t.detach().clone().requires_grad_() for name, t in tensors.items()}


def split(tensors, options):
    """A form as an operator takes it: q, k, v, the others, spec, numbers, lengths."""
    plain = {name: t for name, t in tensors.items() if name not in "qkv" and not name.startswith("variant")}
    numbered = {int(name[7:]): t for name, t in tensors.items() if name.startswith("variant")}
    named = {**plain, **options}
    layout, causal, window, scale = (named.pop(name, none) for name, none in
                                     (("layout", "bshd"), ("causal", False), ("window", None), ("scale", None)))
    if numbered:
        named["variant_tensors"] = {**named.get("variant_tensors", {}), **numbered}
    r = _spec.request(layout, causal, window, "no", named)
    return (tensors["q"], tensors["k"], tensors["v"], r.tensors, r.spec.text,
            [_spec.scale_of(scale), float(r.softcap), float(r.dropout)], [r.max_q, r.max_k])


class EveryForm(unittest.TestCase):
    def near(self, got, wanted, tolerance):
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)

    def answer(self, function, tensors):
        """out, and the gradients of a weighted sum of it for every tensor."""
        given = leaves(tensors)
        out = function(given)
        weights = torch.linspace(-1, 1, out.numel(), device=out.device, dtype=out.dtype).reshape(out.shape)
        (out * weights).sum().backward()
        return [out.detach(), *(t.grad for t in given.values())]

    def test_gradients_are_the_slope_in_double_by_the_reference(self):
        for name, (tensors, options) in forms.forms(torch.float64).items():
            names, values = list(tensors), list(leaves(tensors).values())

            def run(*given, **more):
                return forms.call(at.attend, dict(zip(names, given)), options, backend="reference", **more)

            with self.subTest(name), warnings.catch_warnings():
                # Gates, weights and sinks are f32, for which the steps are large enough.
                warnings.simplefilter("ignore")
                # The gradient of a bias is summed in f32, hence the step size.
                self.assertTrue(torch.autograd.gradcheck(run, values, eps=1e-3, atol=2e-3, rtol=1e-3, fast_mode=True))
                if "nsa" not in name:
                    self.assertTrue(torch.autograd.gradcheck(
                        lambda *given: torch.where(torch.isfinite(lse := run(*given, return_lse=True)[1]), lse, 0),
                        values, eps=1e-3, atol=2e-3, rtol=1e-3))

    def test_operators_are_clean(self):
        for name, (tensors, options) in forms.forms().items():
            if name in forms.NUMBERS:  # identical to an operator except for the text
                continue
            with self.subTest(name):
                torch.library.opcheck(_ops.forward, split(leaves(tensors), options))
                q, k, v, others, text, numbers, lengths = split(tensors, options)
                out, lse, saved = _ops.forward(q, k, v, others, text, numbers, lengths)
                wanted = [t.is_floating_point() and n in tensors for n, t in zip(_spec.from_text(text).given, others)]
                for d_lse in (None, torch.ones_like(lse)) if name == "full" else (torch.ones_like(lse),):
                    torch.library.opcheck(_ops.backward, (torch.ones_like(out), d_lse, q, k, v, out, lse, others, saved,
                                                          text, numbers, lengths, wanted))

    def test_appends_are_clean(self):
        q, new_k, new_v = torch.randn(2, 2, 4, 8), torch.randn(2, 2, 2, 8), torch.randn(2, 2, 2, 8)
        used = torch.tensor([3, 2], dtype=torch.int32)
        table = torch.tensor([[3, 1], [5, 0]], dtype=torch.int32)
        turned = {"rotary_cos": torch.randn(8, 4), "rotary_sin": torch.randn(8, 4)}
        for name, shape, options in (
                ("cache", (2, 6, 2, 8), {}),
                ("bhsd", (2, 2, 6, 8), {"layout": "bhsd"}),
                ("rotary", (2, 6, 2, 8), turned),
                ("halves", (2, 6, 2, 8), {**turned, "rotary_interleaved": False}),
                ("index", (3, 6, 2, 8), {"cache_index": torch.tensor([2, 0], dtype=torch.int32)}),
                ("padding", (2, 6, 2, 8), {"left_pad": torch.tensor([1, 0], dtype=torch.int32)}),
                ("pages", (6, 4, 2, 8), {"page_table": table}),
                ("packed", (2, 6, 2, 8), {"layout": "thd", "cu_q": torch.tensor([0, 2, 4], dtype=torch.int32),
                                         "max_q": 2})):
            with self.subTest(name):
                turn = (lambda t: t.transpose(1, 2).contiguous()) if name == "bhsd" else lambda t: t
                given = {"q": q.flatten(0, 1) if name == "packed" else turn(q), "k": torch.randn(shape),
                         "v": torch.randn(shape)}
                named = {"causal": True, "used_k": used, "k_new": turn(new_k), "v_new": turn(new_v), **options}
                torch.library.opcheck(_ops.append, split(given, named))

    def test_compiled_and_checkpointed_it_is_the_same(self):
        for device in DEVICES:
            for name, (tensors, options) in forms.forms(device=device).items():
                def plain(given):
                    return forms.call(at.attend, given, options)

                with self.subTest(name, device=device):
                    wanted = self.answer(plain, tensors)
                    torch._dynamo.reset()  # Dynamo limits the number of programs per function
                    compiled = torch.compile(plain, fullgraph=True, backend="aot_eager")
                    def again(given):  # reentrant checkpointing, which only sees tensors that are arguments
                        return checkpoint(lambda *values: plain(dict(zip(given, values))), *given.values(),
                                          use_reentrant=True)

                    def kept(given):
                        return checkpoint(plain, given, use_reentrant=False)

                    for how in (compiled, kept, again):
                        for got, true in zip(self.answer(how, tensors), wanted):
                            self.near(got, true, 1e-4 if device == "cuda" else 1e-6)

    def test_autocast_chooses_the_dtype_and_gradients_have_their_own(self):
        for name, (tensors, options) in forms.forms().items():
            with self.subTest(name):
                given = leaves(tensors)
                cast = torch.bfloat16
                streams = name == "nsa"  # streams are tensors of the call, and the caller must cast them
                if streams:
                    given = {n: t.to(cast) if n in ("variant0", "variant1", "variant2", "variant3") else t
                             for n, t in given.items()}
                with torch.autocast("cpu", dtype=cast):
                    out = forms.call(at.attend, given, options)
                self.assertEqual(out.dtype, cast)
                found = torch.autograd.grad(out.float().square().sum(), list(given.values()))
                for t, gradient in zip(given.values(), found):
                    self.assertEqual(gradient.dtype, t.dtype)
                    self.assertTrue(gradient.isfinite().all())

    def test_what_changes_in_place_before_the_backward_is_caught(self):
        for name, (tensors, options) in forms.forms().items():
            moved = [*tensors, *(n for n in options if torch.is_tensor(options[n]))]
            for changed in moved:
                with self.subTest(name, changed=changed):
                    given = {n: t * 1 for n, t in leaves(tensors).items()}
                    named = {n: t.clone() if torch.is_tensor(t) else t for n, t in options.items()}
                    out = forms.call(at.attend, given, named)
                    with torch.no_grad():
                        (given | named)[changed].add_(1)
                    with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                        out.sum().backward()
            with self.subTest(name, changed="out"):
                out = forms.call(at.attend, leaves(tensors), options)
                out.mul_(2)
                with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                    out.sum().backward()

    @unittest.skipIf("cuda" not in DEVICES, "no GPU is here")
    def test_both_passes_are_captured_in_a_graph_and_replayed_with_new_numbers(self):
        for name, (tensors, options) in forms.forms(torch.bfloat16, "cuda").items():
            with self.subTest(name):
                given = leaves(tensors)
                values = list(given.values())

                def step():
                    out = forms.call(at.attend, given, options)
                    return [out, *torch.autograd.grad(out, values, torch.ones_like(out))]

                stream = torch.cuda.Stream()
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):  # the first run allocates, as PyTorch's manual recommends
                    step()
                torch.cuda.current_stream().wait_stream(stream)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    captured = step()
                with torch.no_grad():
                    for t in values:
                        t.copy_(torch.randn_like(t))
                graph.replay()
                for got, wanted in zip(captured, step()):
                    self.near(got, wanted, 2e-2)


class Inductor(unittest.TestCase):
    """torch.compile with Inductor: for the CPU it generates C++, which is compiled here."""

    @classmethod
    def setUpClass(cls):
        torch._dynamo.reset()
        # A cached program contains the backward that attune had when it was compiled.
        cls.caches = unittest.mock.patch.object(torch._inductor.config, "force_disable_caches", True)
        cls.caches.start()
        cls.addClassCleanup(cls.caches.stop)
        try:
            torch.compile(lambda x: (x * 2).sin())(torch.randn(8))
        except Exception as error:  # no compiler, or none that supports this machine
            raise unittest.SkipTest(f"inductor does not run here: {str(error).splitlines()[0]}") from None

    def test_a_layer_is_one_program_with_the_same_answer_and_gradients(self):
        for device in DEVICES:
            for dynamic in (False, True):
                with self.subTest(device=device, dynamic=dynamic):
                    torch._dynamo.reset()
                    q, k, v, bias = (t.to(device) for t in (torch.randn(2, 5, 4, 8), torch.randn(2, 6, 2, 8),
                                                            torch.randn(2, 6, 2, 8), torch.randn(1, 4, 5, 6)))

                    def layer(q, k, v, bias):
                        out, lse = at.attend(q * 2, k.sin(), v, causal=True, return_lse=True)
                        more = at.attend(q, k, v, bias=bias + 1)
                        drop = at.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), enable_gqa=True)
                        return (out + more).cos() + drop.transpose(1, 2), lse

                    compiled = torch.compile(layer, fullgraph=True, dynamic=dynamic)
                    for rows in (5, 3):  # with dynamic, the same program
                        given = [t.clone().requires_grad_() for t in (q[:, :rows], k, v, bias[:, :, :rows])]
                        answers = [f(*given) for f in (compiled, layer)]
                        for got, true in zip(*answers):
                            torch.testing.assert_close(got, true, rtol=1e-4, atol=1e-4)
                        for got, true in zip(*(torch.autograd.grad(a.sum() + b.sum(), given) for a, b in answers)):
                            torch.testing.assert_close(got, true, rtol=1e-3, atol=1e-4)

    @unittest.skipUnless(hasattr(torch._inductor, "aoti_compile_and_package"), "this PyTorch makes no packages")
    def test_a_package_of_an_exported_layer_has_the_same_answer(self):
        class Layer(torch.nn.Module):
            def forward(self, q, k, v, bias):
                return at.attend(q * 2, k, v, causal=True) + at.attend(q, k, v, bias=bias)

        for device in DEVICES:
            with self.subTest(device=device), tempfile.TemporaryDirectory() as folder, torch.no_grad():
                q, k, v = (torch.randn(2, 6, 2, 8, device=device) for _ in range(3))
                given = q, k, v, torch.randn(1, 2, 6, 6, device=device)
                exported = torch.export.export(Layer(), given)
                torch.testing.assert_close(exported.module()(*given), Layer()(*given), rtol=1e-5, atol=1e-5)
                path = torch._inductor.aoti_compile_and_package(exported, package_path=folder + "/layer.pt2")
                torch.testing.assert_close(torch._inductor.aoti_load_package(path)(*given), Layer()(*given),
                                           rtol=1e-5, atol=1e-5)

    def test_an_append_writes_the_cache_that_was_given(self):
        torch._dynamo.reset()
        q, new = torch.randn(2, 1, 4, 8), torch.randn(2, 1, 2, 8)
        used = torch.tensor([3, 2], dtype=torch.int32)
        caches = [torch.zeros(2, 6, 2, 8) for _ in range(4)]

        def step(q, k, v, new):
            return at.attend(q + 1, k, v, causal=True, used_k=used, k_new=new * 2, v_new=new) * 2

        with torch.no_grad():
            got = torch.compile(step, fullgraph=True)(q, *caches[:2], new)
            wanted = step(q, *caches[2:], new)
        torch.testing.assert_close(got, wanted)
        for a, b in zip(caches[:2], caches[2:]):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
            self.assertGreater(a.abs().sum().item(), 0)

    def test_a_layer_of_the_library_is_one_program(self):
        torch._dynamo.reset()
        layer = at.Module("multihead f32 b1 s4 e8 h2 | causal")
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter)
        x = torch.randn(1, 4, 8)
        compiled = torch.compile(lambda x: layer(x.sin()).cos(), fullgraph=True)
        answers = []
        for function in (compiled, lambda x: layer(x.sin()).cos()):
            leaf = x.clone().requires_grad_()
            out = function(leaf)
            answers.append([out, *torch.autograd.grad(out.sum(), (leaf, *layer.parameters()))])
        for got, true in zip(*answers):
            torch.testing.assert_close(got, true, rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    unittest.main()
