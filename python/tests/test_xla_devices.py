# SPDX-License-Identifier: Apache-2.0
"""attune.jax with several XLA devices: each call runs on the device of its arrays. GPUs use a stand-in for XLA's side
of the foreign function interface, because no test machine has two; CPUs use XLA itself."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
import textwrap
import unittest

import attune
from attune import _core
from attune._spec import Spec

P, SIZE, I32, I64 = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int32, ctypes.c_int64


def structure(*fields):
    return type("Structure", (ctypes.Structure,), {"_fields_": list(fields)})


HEAD = ("size", SIZE), ("extensions", P)
Version = structure(*HEAD, ("major", I32), ("minor", I32))
Buffer = structure(*HEAD, ("dtype", I32), ("data", P), ("rank", I64), ("dims", P))
Text = structure(("data", ctypes.c_char_p), ("length", SIZE))
Scalar = structure(("dtype", I32), ("value", P))
Buffers = structure(*HEAD, ("count", I64), ("types", P), ("items", P))
Attributes = structure(*HEAD, ("count", I64), ("types", P), ("names", P), ("items", P))
ErrorArgs = structure(*HEAD, ("message", ctypes.c_char_p), ("code", I32))
StreamArgs = structure(*HEAD, ("context", P), ("stream", P))
OrdinalArgs = structure(*HEAD, ("context", P), ("ordinal", I32))
Api = structure(*HEAD, ("version", Version), ("internal", P), ("error", P), ("unused_1", P * 3), ("stream", P),
                ("unused_2", P * 12), ("ordinal", P))
Call = structure(*HEAD, ("api", P), ("context", P), ("stage", I32), ("arguments", Buffers), ("results", Buffers),
                 ("attributes", Attributes))
Callback = ctypes.CFUNCTYPE(P, P)

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = P, [ctypes.py_object, ctypes.c_char_p]


def at(thing):
    return ctypes.cast(ctypes.pointer(thing), P).value


class Xla:
    """XLA's side of one call with [1, 4, 2, 8] f32; it reports the GPU of the call. `api_size` is that of an XLA
    version; those before late 2025 have no ordinal. A version older than the stand-in supports is emulated by its size
    alone."""

    def __init__(self, ordinal, api_size=None, ordinal_fails=False):
        self.said, self.asked, self.ordinal, self.ordinal_fails = None, 0, ordinal, ordinal_fails
        self.callbacks = [Callback(f) for f in (self.error, self.stream, self.device)]
        error, stream, device = (ctypes.cast(f, P).value for f in self.callbacks)
        self.api = Api(size=api_size or ctypes.sizeof(Api), error=error, stream=stream, ordinal=device)

    def error(self, args):
        self.said = ctypes.cast(args, ctypes.POINTER(ErrorArgs))[0].message.decode()
        return 1  # some error

    def stream(self, args):
        ctypes.cast(args, ctypes.POINTER(StreamArgs))[0].stream = 7
        return None

    def device(self, args):
        self.asked += 1
        if self.ordinal_fails:
            return 2
        ctypes.cast(args, ctypes.POINTER(OrdinalArgs))[0].ordinal = self.ordinal
        return None

    def call(self, is_cuda=True):
        """The handler's result: None, or an error."""
        spec = Spec()
        fields = " ".join(f"{name}={value}" for name, value in {**spec._fields(), "pass": 0}.items())
        text = f"{fields}||q=bshd k=bshd v=bshd out=bshd".encode()
        self.dims = (I64 * 4)(1, 4, 2, 8)
        self.memory = [(ctypes.c_float * 64)() for _ in range(4)]
        buffers = [Buffer(dtype=11, data=at(m), rank=4, dims=at(self.dims)) for m in self.memory]
        items = (P * 4)(*map(at, buffers))
        numbers = {b"scale": ctypes.c_float(0), b"softcap": ctypes.c_float(0), b"dropout": ctypes.c_float(0),
                   b"len_q": I32(0), b"len_k": I32(0)}
        names = [Text(name, len(name)) for name in (b"spec", *numbers)]
        values = [Text(text, len(text)), *(Scalar(0, at(n)) for n in numbers.values())]
        types = (I32 * 6)(4, *(3,) * 5)
        name_items, value_items = ((P * 6)(*map(at, list_)) for list_ in (names, values))
        call = Call(api=at(self.api), arguments=Buffers(count=3, items=at(items)),
                    results=Buffers(count=1, items=at(items) + 3 * ctypes.sizeof(P)),
                    attributes=Attributes(count=6, types=at(types), names=at(name_items), items=at(value_items)))
        handler = _pointer(_core.xla_handler(is_cuda), b"xla._CUSTOM_CALL_TARGET")
        return ctypes.CFUNCTYPE(P, P)(handler)(at(call))


class Ordinal(unittest.TestCase):
    def test_a_call_is_on_the_gpu_that_xla_names(self):
        for ordinal in (97, 98):  # ordinals that no machine has: refused by name before a kernel
            xla = Xla(ordinal)
            self.assertIsNotNone(xla.call())
            self.assertIn(f"cuda:{ordinal}", xla.said)
            self.assertEqual(xla.asked, 1)

    def test_an_older_xla_that_does_not_say_has_one(self):
        try:
            attune.plan("forward f32 b1 h2 q4 k4 d8 full", "cuda:0")
            self.skipTest("a GPU is here, and would be asked for memory that is not its own")
        except attune.Error:
            pass
        xla = Xla(97, ctypes.sizeof(Api) - ctypes.sizeof(P))
        self.assertIsNotNone(xla.call())
        self.assertIn("cuda:0", xla.said)
        self.assertEqual(xla.asked, 0)

    def test_an_error_of_xlas_own_is_handed_on(self):
        xla = Xla(97, ordinal_fails=True)
        self.assertEqual(xla.call(), 2)
        self.assertIsNone(xla.said)

    def test_a_call_on_the_cpu_asks_for_no_gpu(self):
        xla = Xla(97)
        self.assertIsNone(xla.call(is_cuda=False), xla.said)
        self.assertEqual(xla.asked, 0)


SEVERAL = """
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from attune.jax import attend
    assert len(jax.devices("cpu")) == 3, jax.devices()
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((6, 5, 2, 8)).astype("float32") for _ in range(3))
    loss = jax.jit(jax.value_and_grad(lambda q, k, v: (attend(q, k, v, causal=True) ** 2).sum(), (0, 1, 2)))
    wanted = jax.tree.map(np.asarray, loss(q, k, v))
    for device in jax.devices("cpu"):
        given = [jax.device_put(t, device) for t in (q, k, v)]
        out = attend(*given, causal=True)
        assert out.devices() == {device}, (out.devices(), device)
        for got, true in zip(jax.tree.leaves(loss(*given)), jax.tree.leaves(wanted)):
            assert got.devices() == {device}
            np.testing.assert_allclose(got, true, rtol=1e-5, atol=1e-5)
    # One program over all of them: each has its part of the batch.
    mesh = Mesh(np.array(jax.devices("cpu")), ("batch",))
    rows = PartitionSpec("batch")
    shard_map = getattr(jax, "shard_map", None)
    if shard_map is None:
        from jax.experimental.shard_map import shard_map
    spread = [jax.device_put(t, NamedSharding(mesh, rows)) for t in (q, k, v)]
    function = lambda q, k, v: attend(q, k, v, causal=True)
    try:
        mapped = shard_map(function, mesh=mesh, in_specs=(rows,) * 3, out_specs=rows, check_vma=False)
    except TypeError:  # an older word for it
        mapped = shard_map(function, mesh=mesh, in_specs=(rows,) * 3, out_specs=rows, check_rep=False)
    out = jax.jit(mapped)(*spread)
    assert len(out.devices()) == 3
    np.testing.assert_allclose(out, attend(q, k, v, causal=True), rtol=1e-5, atol=1e-5)
    print("spread over", len(out.devices()))
"""


@unittest.skipIf(importlib.util.find_spec("jax") is None, "jax is not here")
class SeveralOfTheCpu(unittest.TestCase):
    def test_calls_run_where_their_arrays_are_and_over_all(self):
        flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=3"
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(SEVERAL)], capture_output=True, text=True,
                              env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"})
        self.assertEqual((done.returncode, done.stdout), (0, "spread over 3\n"), done.stderr[-3000:])


if __name__ == "__main__":
    unittest.main()
