# SPDX-License-Identifier: Apache-2.0
"""attune.jax over several devices: inside shard_map, and in a program whose arrays are sharded."""

from __future__ import annotations

import os
import unittest

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
try:
    import jax
    import jax.numpy as jnp
except ImportError:
    raise unittest.SkipTest("JAX is not here")

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import attune
from attune.jax import attend

if len(jax.devices("cpu")) < 4 or not hasattr(jax, "shard_map"):
    raise unittest.SkipTest("JAX has fewer than 4 devices here, or no jax.shard_map")

MESH = Mesh(np.array(jax.devices("cpu")[:4]).reshape(2, 2), ("x", "y"))


def draw(*shapes):
    rng = np.random.default_rng(3)
    return [jnp.asarray(rng.standard_normal(shape), "float32") for shape in shapes]


def loss(q, k, v, bias, sinks):
    out, lse = attend(q, k, v, causal=True, bias=bias, sinks=sinks, return_lse=True)
    return (out ** 2).sum() + lse.sum()


class Shards(unittest.TestCase):
    def near(self, got, wanted):
        for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(np.asarray(g), np.asarray(w), rtol=1e-4, atol=1e-4)

    def given(self, heads_kv=2, bias=(1, 4, 9, 9)):
        return draw((4, 9, 4, 16), (4, 9, heads_kv, 16), (4, 9, heads_kv, 16), bias, (4,))

    def test_gradients_go_through_shard_map(self):
        tensors = self.given()
        wanted = jax.value_and_grad(loss, tuple(range(5)))(*tensors)
        for check in (True, False):
            with self.subTest(check_vma=check):
                whole = jax.shard_map(lambda *t: jax.lax.psum(loss(*t), ("x", "y")), mesh=MESH, check_vma=check,
                                      in_specs=(P(("x", "y")),) * 3 + (P(), P()), out_specs=P())
                self.near(jax.jit(jax.value_and_grad(whole, tuple(range(5))))(*tensors), wanted)

    def test_shard_map_outside_of_jit_is_refused_in_words(self):
        q = draw((4, 9, 4, 16))[0]
        whole = jax.shard_map(lambda q: attend(q, q, q), mesh=MESH, in_specs=P("x"), out_specs=P("x"))
        self.near(jax.jit(whole)(q), attend(q, q, q))
        try:
            got = whole(q)
        except attune.Error as error:
            self.assertIn("jax.jit the function", str(error))
        else:  # where JAX can do it
            self.near(got, attend(q, q, q))

    def test_a_sharded_program_stays_sharded(self):
        for by, heads_kv, bias in ((P("x"), 2, (1, 4, 9, 9)), (P(None, None, "y"), 2, (4, 1, 9, 9)),
                                   (P("x", None, "y"), 2, (1, 1, 1, 9)), (P(("x", "y")), 1, (4, 4, 9, 9)),
                                   (P("x", None, "y"), 4, (4, 4, 9, 9))):
            tensors = self.given(heads_kv, bias)
            wanted = jax.value_and_grad(loss, tuple(range(5)))(*tensors)
            placed = [jax.device_put(t, NamedSharding(MESH, by if n < 3 else P())) for n, t in enumerate(tensors)]
            if heads_kv == 1:
                placed[1:3] = [jax.device_put(t, NamedSharding(MESH, P(by[0]))) for t in tensors[1:3]]
            with self.subTest(by=by, heads_kv=heads_kv):
                program = jax.jit(lambda q, k, v: attend(q, k, v, causal=True)).lower(*placed[:3]).compile()
                self.assertNotIn("all-gather", program.as_text())
                out = program(*placed[:3])
                self.assertTrue(out.sharding.is_equivalent_to(placed[0].sharding, 4), out.sharding)
                self.near(out, attend(*tensors[:3], causal=True))
                gradient = jax.jit(jax.value_and_grad(loss, tuple(range(5)))).lower(*placed).compile()
                self.assertNotIn("all-gather", gradient.as_text())
                self.near(gradient(*placed), wanted)

    def test_what_does_not_divide_or_mixes_sequences_is_right_too(self):
        q, k, v = draw((3, 9, 4, 16), (3, 9, 2, 16), (3, 9, 2, 16))
        four = NamedSharding(MESH, P(None, None, ("x", "y")))  # more parts than KV heads
        self.near(jax.jit(attend)(jax.device_put(q, four), k, v), attend(q, k, v))
        seed = jnp.array([1, 2], jnp.int32)
        with jax.enable_x64(True):
            seed = jnp.array([1, 2], "int64")
            drops = jax.jit(lambda q, k, v: attend(q, k, v, dropout=0.5, seed=seed))
            q, k, v = draw((4, 9, 4, 16), (4, 9, 2, 16), (4, 9, 2, 16))
            placed = [jax.device_put(t, NamedSharding(MESH, P("x"))) for t in (q, k, v)]
            self.near(drops(*placed), drops(q, k, v))

    def test_vmap_and_scan_work_with_several_devices(self):
        q, k, v = draw((3, 4, 9, 4, 16), (3, 4, 9, 2, 16), (4, 9, 2, 16))
        wanted = jnp.stack([attend(a, b, v) for a, b in zip(q, k)])
        self.near(jax.jit(jax.vmap(attend, (0, 0, None)))(q, k, v), wanted)
        self.near(jax.lax.scan(lambda c, t: (c, attend(*t, v)), 0, (q, k))[1], wanted)
        self.near(jax.grad(lambda q: jax.vmap(attend, (0, 0, None))(q, k, v).sum())(q),
                  jnp.stack([jax.grad(lambda a: attend(a, b, v).sum())(a) for a, b in zip(q, k)]))


class Words(unittest.TestCase):
    def test_traced_numbers_are_refused_in_words(self):
        q = draw((1, 4, 2, 8))[0]
        for name, value in (("scale", 0.5), ("softcap", 2.0), ("causal", True), ("max_k", 4)):
            with self.assertRaisesRegex(attune.Error, f"{name} is traced by jax.jit.*static_argnames='{name}'"):
                jax.jit(lambda n: attend(q, q, q, **{name: n}))(value)
        self.assertEqual(jax.jit(attend, static_argnames="scale")(q, q, q, scale=0.5).shape, q.shape)

    def test_an_eager_call_raises_the_librarys_error(self):
        q, k = draw((1, 4, 4, 8), (1, 4, 3, 8))
        with self.assertRaisesRegex(attune.Error, "^problem: heads_kv = 3 does not divide heads_q = 4"):
            attend(q, k, k)


if __name__ == "__main__":
    unittest.main()
