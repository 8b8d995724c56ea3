"""attune.jax: jitted, differentiated, mapped; on the CPU, and on a GPU where JAX has one."""

from __future__ import annotations

import os
import unittest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
try:
    import jax
    import jax.numpy as jnp
except ImportError:
    raise unittest.SkipTest("JAX is not here")

from attune.jax import attend

DEVICES = [jax.devices("cpu")[0]] + ([jax.devices()[0]] if jax.default_backend() == "gpu" else [])


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
    return [jax.random.normal(jax.random.PRNGKey(n), shape) for n, shape in enumerate(shapes)]


class Jax(unittest.TestCase):
    def near(self, got, wanted, tolerance=2e-5):
        self.assertEqual(got.shape, wanted.shape)
        self.assertLess(float(jnp.abs(got - wanted).max()), tolerance)

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
        there = jnp.arange(12) < 9
        inside = jnp.arange(6) < used[:, None]
        for name, tensors, named, rows in (
                ("tail", (q, k, v), packed, there),
                ("both", (q, k, v), {**packed, "used_q": used}, there.at[3].set(False)),
                ("bshd", pair, {"used_q": used}, inside),
                ("bhsd", turned, {"used_q": used, "layout": "bhsd"}, inside[:, None])):
            with self.subTest(name):
                def loss(q):
                    out, lse = attend(q, *tensors[1:], return_lse=True, **named)
                    return (out ** 2).sum(), (out, lse)

                dq, (out, lse) = jax.grad(loss, has_aux=True)(tensors[0])
                shown = jnp.broadcast_to(rows[..., None, None] if name != "bhsd" else rows[..., None], dq.shape)
                for x in (dq, out):
                    self.assertEqual(float(jnp.abs(jnp.where(shown, 0, x)).max()), 0)
                shown = jnp.broadcast_to(rows if name == "bhsd" or rows.ndim == 1 else rows[:, None], lse.shape)
                self.assertTrue(bool((jnp.isneginf(lse) == ~shown).all()))

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
        with self.assertRaisesRegex(ValueError, "no append"):
            attend(q, q, q, k_new=q, v_new=q)


if __name__ == "__main__":
    unittest.main()
