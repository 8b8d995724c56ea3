# SPDX-License-Identifier: Apache-2.0
"""attune.jax: jitted, differentiated, mapped; on the CPU, and on a GPU if JAX has one."""

from __future__ import annotations

import functools
import os
import unittest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
try:
    import jax
    import jax.numpy as jnp
    import numpy as np
except ImportError:
    raise unittest.SkipTest("JAX is not here")

import attune
from attune.jax import attend

NSA = "nsa d=4 gate=sigmoid l=8 n=4 phi=mean s=8 w=8"

DEVICES = [jax.devices("cpu")[0]] + ([jax.devices()[0]] if jax.default_backend() == "gpu" else [])


@functools.partial(jax.jit, static_argnames="causal")  # one program for all, not one per step
def dense(q, k, v, causal=False, bias=None):
    with jax.default_matmul_precision("highest"):
        k, v = (jnp.repeat(t, q.shape[2] // k.shape[2], 2) for t in (k, v))
        scores = jnp.einsum("bshd,bthd->bhst", q, k) * q.shape[-1] ** -0.5
        if bias is not None:
            scores = scores + bias
        if causal:
            rows, keys = scores.shape[-2:]
            scores = jnp.where(jnp.tril(jnp.ones((rows, keys)), keys - rows) > 0, scores, -jnp.inf)
        return jnp.einsum("bhst,bthd->bshd", jax.nn.softmax(scores, -1), v), jax.nn.logsumexp(scores, -1)


def draw(*shapes):
    """Drawn by NumPy: JAX would compile a program for every shape."""
    return [jnp.asarray(np.random.default_rng(n).standard_normal(shape, "float32")) for n, shape in enumerate(shapes)]


class Jax(unittest.TestCase):
    def near(self, got, wanted, tolerance=2e-5):
        self.assertEqual(got.shape, wanted.shape)
        self.assertLess(float(np.abs(np.asarray(got) - np.asarray(wanted)).max()), tolerance)

    def test_a_jitted_call_is_the_definition(self):
        for device in DEVICES:
            with self.subTest(device=str(device)), jax.default_device(device):
                q, k, v = draw((2, 5, 4, 16), (2, 7, 2, 16), (2, 7, 2, 16))
                out, lse = jax.jit(lambda *t: attend(*t, causal=True, return_lse=True))(q, k, v)
                wanted, wanted_lse = dense(q, k, v, True)
                self.near(out, wanted)
                self.near(lse, wanted_lse)

    def test_gradients_go_through_out_lse_and_bias(self):
        for device in DEVICES:
            with self.subTest(device=str(device)), jax.default_device(device):
                q, k, v, bias = draw((2, 5, 4, 16), (2, 7, 2, 16), (2, 7, 2, 16), (1, 4, 5, 7))

                def loss(function):
                    def of(q, k, v, bias):
                        out, lse = function(q, k, v, bias)
                        return (out * jnp.cos(out)).sum() + (lse ** 2).sum()
                    return jax.jit(jax.grad(of, (0, 1, 2, 3)))

                got = loss(lambda q, k, v, b: attend(q, k, v, bias=b, return_lse=True))(q, k, v, bias)
                true = loss(lambda q, k, v, b: dense(q, k, v, bias=b))(q, k, v, bias)
                for g, t in zip(got, true):
                    self.near(g, t, 2e-4)

    def test_packed_sequences(self):
        q, k, v = draw((9, 2, 8), (9, 2, 8), (9, 2, 8))
        cu = jnp.array([0, 4, 9], jnp.int32)
        out = attend(q, k, v, layout="thd", cu_q=cu, cu_k=cu, max_q=5, max_k=5)
        for a, b in ((0, 4), (4, 9)):
            self.near(out[a:b], dense(*(t[None, a:b] for t in (q, k, v)))[0][0])

    def test_rows_in_no_sequence_are_zero_and_weigh_nothing(self):
        q, k, v = draw((12, 2, 8), (12, 2, 8), (12, 2, 8))
        cu, used = jnp.array([0, 4, 9], jnp.int32), jnp.array([3, 5], jnp.int32)
        packed = dict(layout="thd", cu_q=cu, cu_k=cu, max_q=5, max_k=5)
        pair = [t.reshape(2, 6, 2, 8) for t in (q, k, v)]
        turned = [t.transpose(0, 2, 1, 3) for t in pair]
        there = np.arange(12) < 9
        inside = np.arange(6) < np.asarray(used)[:, None]
        for name, tensors, named, rows in (
                ("tail", (q, k, v), packed, there),
                ("both", (q, k, v), {**packed, "used_q": used}, there & (np.arange(12) != 3)),
                ("bshd", pair, {"used_q": used}, inside),
                ("bhsd", turned, {"used_q": used, "layout": "bhsd"}, inside[:, None])):
            with self.subTest(name):
                def loss(q):
                    out, lse = attend(q, *tensors[1:], return_lse=True, **named)
                    return (out ** 2).sum(), (out, lse)

                dq, out, lse = map(np.asarray, jax.tree.leaves(jax.jit(jax.grad(loss, has_aux=True))(tensors[0])))
                shown = np.broadcast_to(rows[..., None, None] if name != "bhsd" else rows[..., None], dq.shape)
                for x in (dq, out):
                    self.assertEqual(float(np.abs(np.where(shown, 0, x)).max()), 0)
                shown = np.broadcast_to(rows if name == "bhsd" or rows.ndim == 1 else rows[:, None], lse.shape)
                self.assertTrue(bool((np.isneginf(lse) == ~shown).all()))

    def test_slopes_have_no_gradient_and_that_is_said(self):
        q, k, v = draw((1, 4, 2, 8), (1, 4, 2, 8), (1, 4, 2, 8))
        slopes = jnp.array([0.5, 0.25])

        def loss(q, slopes):
            return attend(q, k, v, causal=True, slopes=slopes).sum()

        with self.assertRaisesRegex(ValueError, "slopes has no gradient"):
            jax.grad(loss, (0, 1))(q, slopes)
        with self.assertRaisesRegex(ValueError, "slopes has no gradient"):
            jax.jit(jax.grad(loss, 1))(q, slopes)
        got = jax.grad(lambda q: loss(q, jax.lax.stop_gradient(slopes)))(q)
        self.near(got, jax.jit(jax.grad(loss))(q, slopes))
        self.assertGreater(float(jnp.abs(got).max()), 0)

    def test_a_mapped_gradient_is_a_gradient_for_each(self):
        q, k, v = draw((3, 1, 4, 2, 8), (3, 1, 4, 2, 8), (3, 1, 4, 2, 8))
        bias = draw((1, 2, 4, 4))[0]
        ours = jax.grad(lambda q, k, v, b: (attend(q, k, v, causal=True, bias=b) ** 2).sum(), (0, 2, 3))
        theirs = jax.grad(lambda q, k, v, b: (dense(q, k, v, True, b)[0] ** 2).sum(), (0, 2, 3))
        for got, wanted in zip(*(jax.jit(jax.vmap(f, (0, 0, 0, None)))(q, k, v, bias) for f in (ours, theirs))):
            self.near(got, wanted, 1e-4)

    def test_a_mapped_call_is_a_call_for_each(self):
        q, k, v = draw((3, 1, 4, 2, 8), (3, 1, 4, 2, 8), (3, 1, 4, 2, 8))
        out = jax.vmap(lambda *t: attend(*t))(q, k, v)
        for n in range(3):
            self.near(out[n], dense(q[n], k[n], v[n])[0])

    def test_a_refusal_is_an_error_with_the_librarys_sentence(self):
        q, k, v = draw((1, 4, 2, 8), (1, 4, 2, 16), (1, 4, 2, 16))
        with self.assertRaisesRegex(Exception, "k: "):
            jax.block_until_ready(attend(q, k, v))
        with self.assertRaisesRegex(ValueError, "no backend by name"):
            attend(q, q, q, backend="reference")
        with self.assertRaisesRegex(ValueError, "reproducible 'warn' is not one of"):
            attend(q, q, q, reproducible="warn")
        with self.assertRaisesRegex(ValueError, "has no lse"):
            attend(q, q, q, variant=NSA, return_lse=True)
        with self.assertRaisesRegex(Exception, "communicator"):
            jax.block_until_ready(attend(q, q, q, variant="ring layout=ring ranks=2 tokens=8"))

    def test_attend_of_arrays_of_jax_gives_such_arrays(self):
        q, k, v = draw((2, 5, 4, 16), (2, 7, 2, 16), (2, 7, 2, 16))
        wanted, wanted_lse = dense(q, k, v, True)
        out, lse = attune.attend(q, k, v, causal=True, return_lse=True)
        self.assertIsInstance(out, jax.Array)
        self.near(out, wanted)
        self.near(lse, wanted_lse)
        if q.devices() == {DEVICES[0]}:  # through DLPack, into writable memory
            given = np.empty(q.shape, "float32")
            attune.attend(q, k, v, causal=True, out=given)
            self.near(given, wanted)
        with self.assertRaisesRegex(ValueError, "XLA's stream"):
            attune.attend(q, k, v, stream=1)

    def test_an_append_gives_the_cache_back(self):
        for device in DEVICES:
            with self.subTest(device=str(device)), jax.default_device(device):
                q, k, v, k_new, v_new = draw((2, 2, 4, 16), *((2, 12, 2, 16),) * 2, *((2, 2, 2, 16),) * 2)
                used = jnp.array([3, 10], jnp.int32)
                before = [np.array(t) for t in (k, v)]

                def step(q, k, v, k_new, v_new, used):
                    return attend(q, k, v, causal=True, used_k=used, k_new=k_new, v_new=v_new, return_lse=True)

                eager = step(q, k, v, k_new, v_new, used)
                for mine, old in zip((k, v), before):
                    self.assertTrue((np.asarray(mine) == old).all())  # arrays are immutable
                donated = jax.jit(step, donate_argnums=(1, 2))(q, k, v, k_new, v_new, used)
                for made in (eager, donated):
                    out, lse, *cache = made
                    for mine, old, new in zip(cache, before, (k_new, v_new)):
                        wanted = np.array(old)
                        wanted[0, 3:5], wanted[1, 10:12] = new[0], new[1]
                        self.assertTrue((np.asarray(mine) == wanted).all())
                    seen = np.arange(12) <= np.array([3, 10])[:, None, None, None] + np.arange(2)[:, None]
                    wanted, wanted_lse = dense(q, *cache, bias=np.where(seen, 0, -np.inf).astype("float32"))
                    self.near(out, wanted)
                    self.near(lse, wanted_lse)

    def test_an_append_has_no_gradient_and_that_is_said(self):
        q, k, new = draw((1, 2, 2, 8), (1, 4, 2, 8), (1, 2, 2, 8))
        used = jnp.array([1], jnp.int32)
        with self.assertRaisesRegex(ValueError, "appends to a cache has no gradient"):
            jax.grad(lambda q: attend(q, k, k, used_k=used, k_new=new, v_new=new)[0].sum())(q)

    def test_native_sparse_attention_has_the_gradients_of_its_definition(self):
        for device in DEVICES:
            with self.subTest(device=str(device)), jax.default_device(device):
                shapes = (1, 32, 4, 8), *((1, 32, 2, 8),) * 6, (1, 32, 4, 3)

                @jax.jit
                def loss(q, k, v, *streams):
                    out = attend(q, k, v, causal=True, variant=NSA, variant_tensors=dict(enumerate(streams)))
                    return (out ** 2).sum()

                tensors = draw(*shapes)
                value, gradients = jax.jit(jax.value_and_grad(loss, tuple(range(8))))(*tensors)
                self.near(value, jnp.asarray(loss(*tensors)), 1e-3 * abs(float(value)))
                rng = np.random.default_rng(0)
                for n, gradient in enumerate(map(np.asarray, gradients)):
                    for _ in range(3):  # random directions: along the gradient itself, a part of it would suffice
                        way = rng.standard_normal(gradient.shape).astype("float32")
                        ahead, behind = (loss(*tensors[:n], tensors[n] + s * way, *tensors[n + 1:])
                                         for s in (1e-3, -1e-3))
                        slope, wanted = float(ahead - behind) / 2e-3, float((gradient * way).sum())
                        self.assertAlmostEqual(slope, wanted, delta=0.02 * np.linalg.norm(gradient) + 0.2, msg=str(n))

    def test_content_adaptive_blocks_train_their_scorer(self):
        shapes = ((1, 8, 1, 8), (1, 1, 1, 8), (1, 8, 1, 8), (1, 1, 1, 8), (1, 4, 1, 16), (1, 1, 1, 4), (1, 1, 1, 4),
                  (1, 1, 1, 1), (1, 1, 1, 1))
        q, k, v, *weights = draw((1, 32, 2, 8), (1, 40, 2, 8), (1, 40, 2, 8), *shapes)

        @jax.jit
        def loss(last):
            named = dict(enumerate([*weights[:6], last, *weights[7:]]))
            out, lse = attend(q, k, v, variant="adaptive block=8 density=0.5 hidden=4", variant_tensors=named,
                              causal=True, return_lse=True)
            return (out ** 2).sum() + lse.sum()

        gradient = jax.jit(jax.grad(loss))(weights[6])
        step = 1e-2 * gradient / jnp.linalg.norm(gradient)
        slope = float((loss(weights[6] + step) - loss(weights[6] - step)) / 2e-2)
        self.assertAlmostEqual(slope / float(jnp.linalg.norm(gradient)), 1, delta=0.05)

    def test_lists_of_blocks_have_no_gradient_and_do_not_stop_the_others(self):
        q, k, v = draw((1, 32, 4, 8), (1, 32, 2, 8), (1, 32, 2, 8))
        blocks = np.tile(np.array([0, 1, -1], "int32"), (1, 32, 2, 1))  # the first 16 keys
        bias = np.where((np.arange(32)[:, None] >= np.arange(32)) & (np.arange(32) < 16), 0, -np.inf).astype("float32")

        def selected(q, k, v):
            return attend(q, k, v, causal=True, variant="selected n=3 s=8", variant_tensors={0: blocks})

        got, wanted = (jax.jit(jax.grad(lambda *t: (f(*t) ** 2).sum(), (0, 1, 2)))(q, k, v) for f in
                       (selected, lambda *t: dense(*t, bias=bias)[0]))
        for mine, true in zip(got, wanted):
            self.near(mine, true, 1e-4)

    def test_noise_of_a_choice_of_blocks_has_no_gradient_and_its_scorer_has(self):
        shapes = ((1, 8, 1, 8), (1, 1, 1, 8), (1, 8, 1, 8), (1, 1, 1, 8), (1, 4, 1, 16), (1, 1, 1, 4), (1, 1, 1, 4),
                  (1, 1, 1, 1), (1, 1, 1, 1))
        q, *weights = draw((1, 32, 2, 8), *shapes)
        with jax.enable_x64(True):
            seed = np.array([7, 0], "int64").reshape(1, 1, 1, 2)

            def loss(last, whole):
                named = dict(enumerate([*weights[:6], last, *weights[7:]]))
                more = {} if whole else {9: seed}
                say = "adaptive block=8 density=1 hidden=4" + ("" if whole else " noise=gumbel")  # keeps all blocks
                out = attend(q, q, q, variant=say, variant_tensors={**named, **more})
                return (out ** 2).sum()

            got, wanted = (jax.jit(jax.grad(loss), static_argnums=1)(weights[6], whole) for whole in (False, True))
        self.near(got, wanted, 1e-5)
        self.assertGreater(float(jnp.abs(got).max()), 0)

    def test_a_variant_that_cannot_be_read_is_refused_in_words(self):
        q = draw((1, 32, 2, 8))[0]
        for variant, why in (("nsa foo", "'foo' is not name=value"), ("adaptive block=0", "block=0 is not in 1")):
            with self.assertRaisesRegex(attune.Error, why):
                attend(q, q, q, causal=True, variant=variant)

    def test_a_backward_by_hand_says_where_gradients_of_jax_are(self):
        q = draw((1, 4, 2, 8))[0]
        out, lse = attune.attend(q, q, q, return_lse=True)
        with self.assertRaisesRegex(attune.Error, "use attune.jax for gradients of JAX"):
            attune.attend_backward(out, q, q, q, out, lse)

    def test_dilated_attention_and_block_lists(self):
        for device in DEVICES:
            with self.subTest(device=str(device)), jax.default_device(device):
                q, k, v = draw((1, 16, 2, 8), (1, 16, 2, 8), (1, 16, 2, 8))
                lists = dict(block_size=(8, 8), block_begin=jnp.array([[[0, 1, 3]]], jnp.int32),
                             block_column=jnp.array([0, 0, 1], jnp.int32),
                             block_begin_k=jnp.array([[[0, 2, 3]]], jnp.int32),
                             block_row_k=jnp.array([0, 1, 1], jnp.int32))
                hidden = jnp.zeros((1, 1, 16, 16)).at[..., :8, 8:].set(-jnp.inf)
                segments = jnp.where(jnp.arange(16)[:, None] // 8 == jnp.arange(16) // 8, 0.0, -jnp.inf)
                for named, bias in ((lists, hidden), ({"variant": "dilated rates=1 segments=8"}, segments)):
                    got, wanted = (jax.jit(jax.value_and_grad(lambda *t: (f(*t) ** 2).sum(), (0, 1, 2)))(q, k, v)
                                   for f in (lambda *t: attend(*t, **named), lambda *t: dense(*t, bias=bias)[0]))
                    for mine, true in zip(jax.tree.leaves(got), jax.tree.leaves(wanted)):
                        self.near(mine, true, 2e-3)

    def test_of_no_query_or_no_key_there_is_nothing(self):
        for batch, rows, keys in ((0, 3, 4), (2, 0, 4), (2, 3, 0)):
            q, k, v = draw((batch, rows, 4, 8), (batch, keys, 2, 8), (batch, keys, 2, 16))
            out, lse = attend(q, k, v, return_lse=True)
            self.assertEqual((out.shape, lse.shape), ((batch, rows, 4, 16), (batch, 4, rows)))
            self.assertTrue((np.asarray(out) == 0).all() and np.isneginf(lse).all())
            for t, gradient in zip((q, k, v), jax.grad(lambda *t: attend(*t).sum(), (0, 1, 2))(q, k, v)):
                self.assertEqual(gradient.shape, t.shape)
                self.assertTrue((np.asarray(gradient) == 0).all())
            for sentence, named in (("softcap -3 is not finite and above 0", {"softcap": -3}),
                                    (r"bias is \[1, 3, 1, 1\], not \[1 or", {"bias": jnp.zeros((1, 3, 1, 1))})):
                run = functools.partial(attend, **named)
                for function in (run, jax.jit(run)):
                    with self.subTest(sentence, batch=batch, rows=rows), self.assertRaisesRegex(attune.Error, sentence):
                        function(q, k, v)


if __name__ == "__main__":
    unittest.main()
