# SPDX-License-Identifier: Apache-2.0
"""Tensors that no kernel may see: meta, sparse, quantized, on two devices, on an absent GPU. Each raises attune.Error
with a message that names the tensor, through every entry point."""

from __future__ import annotations

import unittest
import unittest.mock
import warnings

import needs

needs.pytorch()

import numpy as np
import torch
import torch.nn.functional as F

import attune
import attune.flash_attn as fa
import attune.flash_attn_interface as fa3
import attune.torch as at
import standin
from attune import _core
from attune.torch import _ops

KINDS = {"meta": r"(the tensor is neither on the CPU nor on CUDA|is on (meta|cpu), and \w+ on (meta|cpu))",
         "sparse_coo": "layout torch.sparse_coo", "sparse_csr": "layout torch.sparse_csr",
         "mkldnn": "layout torch._mkldnn", "qint8": "dtype torch.qint8 is not one that is read here"}


def of_kind(kind, t):
    if kind == "sparse_csr":
        return t.flatten(0, -2).to_sparse_csr()
    return {"meta": lambda: t.to("meta"), "sparse_coo": t.to_sparse, "mkldnn": t.to_mkldnn,
            "qint8": lambda: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8)}[kind]()


class NotLent(unittest.TestCase):
    def ways(self):
        """Every entry point: name, roles, and a call with a tensor in one of them."""
        q, bias = torch.randn(1, 4, 2, 8), torch.randn(1, 2, 4, 4)
        layer = at.Module("multihead f32 b1 s4 e8 h2 | causal")
        cache = attune.Cache(heads=2, dim=8, sequences=2, capacity=6)
        used = torch.tensor([2], dtype=torch.int32)

        def three(run, at, bad, **named):
            return run(*(bad if n == at else q for n in range(3)), **named)

        yield "bias", "bias", bias, lambda bad: at.attend(q, q, q, bias=bad)
        yield "append", "k_new", q[:, :1], lambda bad: at.attend(q[:, :1], q.clone(), q.clone(), used_k=used, k_new=bad,
                                                                v_new=q[:, :1])
        for n, role in enumerate("qkv"):
            leaf = q.clone().requires_grad_()
            yield "attend", role, q, lambda bad, n=n: three(at.attend, n, bad)
            yield "lse", role, q, lambda bad, n=n: three(at.attend, n, bad, return_lse=True)
            yield "with bias", role, q, lambda bad, n=n: three(at.attend, n, bad, bias=bias)
            yield "any", role, q, lambda bad, n=n: three(attune.attend, n, bad, out=torch.empty_like(q))
            yield "flash_attn", role, q, lambda bad, n=n: three(fa.flash_attn_func, n, bad)
            yield "flash_attn_interface", role, q, lambda bad, n=n: three(fa3.flash_attn_func, n, bad)
            if n:
                yield "gradient", role, q, lambda bad, n=n: at.attend(leaf, *(bad if m == n else q for m in (1, 2)))
        yield "out", "out", q, lambda bad: attune.attend(q, q, q, out=bad)
        yield "cache", "q", q[:, :1], lambda bad: cache.attend(bad, sequences=[0], out=torch.empty(1, 1, 2, 8))
        yield "kvcache", "k", q, lambda bad: fa.flash_attn_with_kvcache(q, bad, q, cache_seqlens=used)
        yield "module", "x", q[0, :, :1].transpose(0, 1).contiguous(), layer

    def test_every_kind_is_refused_by_name_whichever_way_it_comes(self):
        for name, role, good, run in self.ways():
            for kind, sentence in KINDS.items():
                if kind == "meta" and role == "q" and name in ("flash_attn", "flash_attn_interface"):
                    continue  # the error names the first missing tensor, which is k
                with self.subTest(name, role=role, kind=kind):
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        bad = of_kind(kind, good)
                        with self.assertRaises(attune.Error) as refused:
                            run(bad)
                    text = str(refused.exception)
                    self.assertNotIn("\n", text)
                    if kind == "sparse_csr" and "axes" in text or name == "module" and kind == "qint8":
                        continue  # two axes are reported first; a layer reports its own dtype
                    self.assertRegex(text, sentence)
                    if kind != "meta":
                        self.assertIn(f"attune: {role}: ", text)

    def test_the_lenders_own_words_are_the_cause(self):
        q = torch.randn(1, 4, 2, 8)
        with self.assertRaises(attune.Error) as refused:
            attune.attend(q, q.to_sparse(), q, out=torch.empty_like(q))
        self.assertIsInstance(refused.exception.__cause__, RuntimeError)

    def test_what_a_lender_says_is_one_line_with_the_tensors_name(self):
        class Unwilling(standin.ndarray):
            def __dlpack__(self, **_):
                raise BufferError("not today\nframe #0: somewhere")

        class Stopped(standin.ndarray):
            def __dlpack__(self, **_):
                raise KeyboardInterrupt

        h = np.zeros((1, 4, 2, 8), "float32")
        with self.assertRaises(attune.Error) as refused:
            attune.attend(h, Unwilling(h), h, out=h.copy())
        self.assertEqual(str(refused.exception), "attune: k: not today")
        with self.assertRaises(KeyboardInterrupt):
            attune.attend(h, Stopped(h), h, out=h.copy())

    def test_meta_tensors_stay_meta_and_do_not_mix(self):
        q, m = torch.randn(1, 4, 2, 8), torch.empty(1, 4, 2, 8, device="meta")
        with torch.autocast("cpu", torch.bfloat16):
            self.assertEqual(at.attend(m, m, m).device.type, "meta")
        for given in ((m, q, q), (m, m, q), (q, m, m), (q, q, m)):
            with self.assertRaises(attune.Error):
                at.attend(*given)
        with self.assertRaisesRegex(attune.Error, "bias is on cpu, and q on meta"):
            at.attend(m, m, m, bias=torch.zeros(1, 1, 4, 4))
        with self.assertRaisesRegex(attune.Error, "is on cpu, and x on meta"):
            at.Module("multihead f32 b1 s4 e8 h2 | causal")(torch.empty(1, 4, 8, device="meta"))

    def test_the_drop_in_leaves_them_to_pytorch(self):
        q = torch.randn(1, 2, 4, 8)
        at.scaled_dot_product_attention(q, q, q)  # makes the form known
        for kind in ("sparse_coo", "mkldnn"):
            for n in range(3):
                given = [of_kind(kind, q) if m == n else q for m in range(3)]
                with self.subTest(kind, n=n):
                    at.counters.clear()
                    with self.assertRaises(RuntimeError) as theirs:
                        F.scaled_dot_product_attention(*given)
                    with self.assertRaises(type(theirs.exception)) as ours:
                        at.scaled_dot_product_attention(*given)
                    self.assertNotIsInstance(ours.exception, attune.Error)
                    self.assertEqual(dict(at.counters.why), {"a tensor that is not strided": 1})


class OtherDevices(unittest.TestCase):
    """Arrays that claim to be on a GPU."""

    host = np.zeros((1, 4, 2, 8), "float32")

    def array(self, number=0, **named):
        return standin.ndarray(self.host.copy(), number, **named)

    def test_a_gpu_and_the_cpu_do_not_mix(self):
        h, bias = self.host, standin.ndarray(np.zeros((1, 2, 4, 4), "float32"))
        for role, run in (("k", lambda: attune.attend(h, self.array(), h)),
                          ("v", lambda: attune.attend(h, h, self.array())),
                          ("out", lambda: attune.attend(h, h, h, out=self.array())),
                          ("bias", lambda: attune.attend(h, h, h, bias=bias))):
            with self.subTest(role), self.assertRaisesRegex(attune.Error, f"{role}: is on cuda:0, but q is on the CPU"):
                run()
        q = torch.randn(1, 4, 2, 8)
        with self.assertRaisesRegex(attune.Error, "k: is on cuda:0, but q is on the CPU"):
            attune.attend(q, self.array(), q, out=torch.empty_like(q))

    @unittest.skipIf(torch.cuda.is_available(), "a GPU is here, and would be asked for memory that is not its own")
    def test_arrays_of_cupy_are_refused_where_no_gpu_is_and_are_told_the_stream(self):
        for stream, told in ((0, 1), (7, 7)):  # the null stream is CUDA's legacy default
            for number in (0, 3):
                for knows in (True, False):
                    with self.subTest(stream=stream, number=number, knows=knows), standin.cupy(stream, number):
                        q, k, v = (self.array(number, knows_versions=knows) for _ in range(3))
                        with self.assertRaisesRegex(attune.Error, f"q: is on cuda:{number}, where|cuda:{number}"):
                            attune.attend(q, k, v)
                        for x in (q, k, v):
                            self.assertEqual(set(x.told), {told})
                        q.device.__enter__.assert_called()  # results are allocated on q's device

    @unittest.skipIf(torch.cuda.is_available(), "a GPU is here, and would be asked for memory that is not its own")
    def test_every_way_in_refuses_arrays_of_cupy(self):
        cache = attune.Cache(heads=2, dim=8, sequences=2, capacity=6)
        x, out = standin.ndarray(np.zeros((1, 4, 8), "float32")), np.zeros((1, 4, 8), "float32")
        lse = standin.ndarray(np.zeros((1, 2, 4), "float32"))
        layer = attune.Module("multihead f32 b1 s4 e8 h2 | causal")
        with standin.cupy():
            q = self.array()
            for name, run in (("check", lambda: attune.check(q, q, q, self.array())),
                              ("blocks", lambda: attune.blocks(q, q, "dense", block=2)),
                              ("cache", lambda: cache.attend(q)),
                              ("backward", lambda: attune.attend_backward(q, q, q, q, q, lse)),
                              ("module", lambda: layer.forward(x, out=out))):
                with self.subTest(name), self.assertRaises(attune.Error):
                    run()

    def test_a_cuda_array_interface_without_dlpack_is_named(self):
        class Numba:
            shape, dtype = self.host.shape, self.host.dtype
            __cuda_array_interface__ = self.array().__cuda_array_interface__

        class Shapeless:
            def __dlpack__(self, **_):
                raise ZeroDivisionError

        with self.assertRaisesRegex(attune.Error, "q: .*Shapeless.* is not a tensor: it has no shape"):
            attune.attend(Shapeless(), self.host, self.host)
        with self.assertRaisesRegex(attune.Error, "k: .*Numba.* is not a tensor: it has no __dlpack__"):
            attune.attend(self.host, Numba(), self.host)

    def test_the_same_arrays_on_the_cpu_are_read(self):
        q = np.random.default_rng(0).standard_normal((1, 4, 2, 8)).astype("float32")
        for knows in (True, False):
            given = [standin.ndarray(q, kind=standin.CPU, knows_versions=knows) for _ in range(3)]
            out = np.zeros_like(q)
            attune.attend(*given, out=out, stream=0)
            np.testing.assert_array_equal(out, attune.attend(q, q, q))
            self.assertEqual(given[0].told, [None])  # no stream


class WarnOnly(unittest.TestCase):
    """torch.use_deterministic_algorithms(True, warn_only=True). Everything on the CPU is deterministic, so a stand-in
    refuses."""

    def setUp(self):
        self.original = _core.run
        self.refuses = False

    def tearDown(self):
        torch.use_deterministic_algorithms(False)

    def run_or_refuse(self, handle, *rest):
        if self.refuses and handle in self.ordered:
            raise _core.Error("attune: no backend keeps repro=run (a stand-in)")
        return self.original(handle, *rest)

    def handles(self):
        """Specs that require determinism."""
        from attune import _spec
        return [h for s in _spec._specs.values() if s.reproducible != "no" for h in (s.forward, s.backward)]

    def answer(self, function, *tensors):
        leaves = [t.clone().requires_grad_() for t in tensors]
        out = function(*leaves)
        return [out.detach(), *torch.autograd.grad(out.square().sum(), leaves)]

    def test_a_call_that_has_no_order_runs_with_a_warning(self):
        q, k, v = (torch.randn(1, 6, 2, 8) for _ in range(3))
        bias = torch.randn(1, 2, 6, 6)
        for name, function in (("plain", lambda *t: at.attend(*t, causal=True)),
                               ("lse", lambda *t: at.attend(*t, return_lse=True)[0]),
                               ("bias", lambda *t: at.attend(*t, bias=bias)),
                               ("flash_attn", lambda *t: fa.flash_attn_func(*t)),
                               ("compiled", torch.compile(lambda *t: at.attend(*t, bias=bias), backend="aot_eager"))):
            with self.subTest(name):
                torch.use_deterministic_algorithms(False)
                wanted = self.answer(function, q, k, v)
                torch.use_deterministic_algorithms(True, warn_only=True)
                with warnings.catch_warnings(record=True) as seen:
                    warnings.simplefilter("always")
                    kept = self.answer(function, q, k, v)
                self.assertFalse([w for w in seen if "attune" in str(w.message)])
                self.ordered = self.handles()
                self.refuses = True
                with unittest.mock.patch.object(_core, "run", self.run_or_refuse):
                    with self.assertWarnsRegex(UserWarning, "no deterministic implementation here.*a stand-in"):
                        got = self.answer(function, q, k, v)
                    torch.use_deterministic_algorithms(True)
                    if name != "compiled":  # a program is recompiled when called again
                        with self.assertRaisesRegex(attune.Error, "a stand-in|no backend"):
                            self.ordered = _Everything()
                            self.answer(function, q, k, v)
                self.refuses = False
                for a, b, c in zip(got, kept, wanted):
                    torch.testing.assert_close(a, c, rtol=1e-5, atol=1e-5)
                    torch.testing.assert_close(b, c, rtol=1e-5, atol=1e-5)

    def test_what_else_is_wrong_is_still_an_error(self):
        torch.use_deterministic_algorithms(True, warn_only=True)
        q = torch.randn(1, 4, 2, 8)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with self.assertRaisesRegex(attune.Error, "batch = 2 is not 1"):
                at.attend(q, torch.cat([q, q]), torch.cat([q, q]))
            with self.assertRaisesRegex(attune.Error, "reproducible 'warn' is not one of no, run, batch"):
                at.attend(q, q, q, reproducible="warn")

    def test_a_reproducible_that_is_asked_for_by_name_is_no_wish(self):
        torch.use_deterministic_algorithms(True, warn_only=True)
        q = torch.randn(1, 4, 2, 8)
        seen = []
        with unittest.mock.patch.object(_ops, "run", side_effect=lambda spec, *a, **b: seen.append(spec.reproducible) or
                                        (q, q, [])):
            at.attend(q, q, q, return_lse=True, reproducible="run")
            at.attend(q, q, q, return_lse=True)
        self.assertEqual(seen, ["run", "warn"])

    def test_a_layer_that_has_no_order_runs_with_a_warning(self):
        layer = at.Module("multihead f32 b1 s4 e8 h2 | causal")
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter)
        from attune.torch import _module
        x, original = torch.randn(1, 4, 8), _module.Layer
        wanted = layer(x)

        def unwilling(text, *rest, **named):
            if "repro=run" in text:
                raise attune.Error("module: no order (a stand-in)")
            return original(text, *rest, **named)

        with unittest.mock.patch.object(_module, "Layer", unwilling):
            torch.use_deterministic_algorithms(True, warn_only=True)
            with self.assertWarnsRegex(UserWarning, "a stand-in"):
                got = layer(x)
            torch.testing.assert_close(got, wanted)
            torch.use_deterministic_algorithms(True)
            with self.assertRaisesRegex(attune.Error, "a stand-in"):
                layer(x)


class _Everything:
    def __contains__(self, _):
        return True


if __name__ == "__main__":
    unittest.main()
