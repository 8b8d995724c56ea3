# SPDX-License-Identifier: Apache-2.0
"""attune for JAX: a function that can be jitted and differentiated, through XLA's foreign function interface.

    from attune.jax import attend
    out = jax.jit(lambda q, k, v: attend(q, k, v, causal=True))(q, k, v)

It runs on XLA's stream and in XLA's memory; q, k, v, bias, sinks and variant tensors have gradients. An append returns
the cache, in the same memory if the caller donates it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from . import _core, _empty, _jax_shards
from ._attend import lse_shape
from ._jax_types import matched, result
from ._saved import saved_shapes
from ._spec import Layout, Options, Spec, Window, from_text, request, scale_of, with_options

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["attend"]

_TARGET = "attune"
for _platform, _is_cuda in (("cpu", False), ("CUDA", True)):
    jax.ffi.register_ffi_target(_TARGET, _core.xla_handler(_is_cuda), platform=_platform)

_DIFFERENTIABLE = ("bias", "sinks")
Numbers = tuple[float, float, float, int, int]  # scale, softcap, dropout, max_q, max_k


def _call(spec: Spec, is_backward: bool, places: list[tuple[str, str]], numbers: Numbers, inputs: list[Any],
          results: list[jax.ShapeDtypeStruct], aliases: dict[int, int] | None = None) -> Any:
    fields = {**spec._fields(), "pass": int(is_backward)}
    text = "|".join((" ".join(f"{name}={value}" for name, value in fields.items()), spec.variant,
                     " ".join(f"{name}={axes}" for name, axes in places)))
    scale, softcap, dropout, max_q, max_k = numbers
    attributes = dict(spec=text, scale=np.float32(scale), softcap=np.float32(softcap), dropout=np.float32(dropout),
                      len_q=np.int32(max_q), len_k=np.int32(max_k))

    def run(results: list[jax.ShapeDtypeStruct], *given: Any) -> Any:
        given = tuple(matched(given))
        made = [result(r.shape, r.dtype, given[0]) for r in results]
        call = jax.ffi.ffi_call(_TARGET, made, vmap_method="sequential", input_output_aliases=aliases)
        return call(*given, **attributes)

    if _jax_shards.is_served(spec, places, inputs):
        return _jax_shards.sharded(run, places, inputs, results)
    return run(results, *inputs)


def _input_places(spec: Spec) -> list[tuple[str, str]]:
    return [("q", spec.layout), ("k", spec.kv_axes), ("v", spec.kv_axes),
            *((name, spec.axes(name)) for name in spec.given)]


def _rows_there(spec: Spec, numbers: Numbers, shape: tuple[int, ...], tensors: tuple[Any, ...]) -> Any:
    """Which rows of q are in a sequence and therefore written: [token], or [batch, seq]."""
    named = dict(zip(spec.given, tensors))
    cu, used = named.get("cu_q"), named.get("used_q")
    if cu is None:
        assert used is not None
        return jnp.arange(shape[spec.layout.index("s")]) < used[:, None]
    token = jnp.arange(shape[0])
    sequence = jnp.clip(jnp.searchsorted(cu, token, side="right") - 1, 0, cu.shape[0] - 2)
    place = token - cu[sequence]
    there = (place >= 0) & (token < cu[sequence + 1])
    if numbers[3]:  # max_q
        there &= place < numbers[3]
    return there if used is None else there & (place < used[sequence])


def _only(there: Any, axes: str, x: Any, otherwise: float) -> Any:
    """x where its row is in a sequence, else `otherwise`. The axes of `there` are batch before seq in both layouts."""
    others = tuple(n for n, letter in enumerate(axes) if letter in "hd")
    return jnp.where(jnp.expand_dims(there, others), x, otherwise)


def _like(t: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(t.shape, t.dtype)


def _saved_places(spec: Spec) -> list[tuple[str, str]]:
    return [(f"variant{n}", "bshd") for n in spec.saved]


def _run(spec: Spec, numbers: Numbers, q: Any, k: Any, v: Any, tensors: tuple[Any, ...]) -> tuple[Any, Any, list[Any]]:
    """out, lse (empty if there is none), and further tensors that a backward needs; with an append, the cache."""
    places = [*_input_places(spec), ("out", spec.layout)]
    results = [jax.ShapeDtypeStruct((*q.shape[:-1], v.shape[-1]), q.dtype)]
    if spec.has_lse:
        places.append(("lse", spec.lse_axes))
        results.append(jax.ShapeDtypeStruct(lse_shape(spec.layout, q.shape), jnp.float32))
    places += _saved_places(spec)
    results += [jax.ShapeDtypeStruct(shape, dtype or q.dtype)
                for shape, dtype in saved_shapes(spec, q.shape, k.shape, v.shape)]
    aliases = None
    if spec.append:
        aliases = {1: len(results), 2: len(results) + 1}
        results += [_like(k), _like(v)]
        places += [("k", spec.kv_axes), ("v", spec.kv_axes)]
    out, *rest = _call(spec, False, places, numbers, [q, k, v, *tensors], results, aliases)
    lse = rest.pop(0) if spec.has_lse else jnp.zeros((0,), jnp.float32)
    if spec.leaves_rows:
        there = _rows_there(spec, numbers, q.shape, tensors)
        out = _only(there, spec.layout, out, 0)
        lse = _only(there, spec.lse_axes, lse, -jnp.inf) if spec.has_lse else lse
    return out, lse, rest


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(text: str, numbers: Numbers, q: Any, k: Any, v: Any, tensors: tuple[Any, ...]) -> tuple[Any, Any]:
    return _run(from_text(text), numbers, q, k, v, tensors)[:2]


def _has_gradient(name: str, t: Any) -> bool:
    """For variant tensors: whether it is neither a block list nor a seed."""
    return name in _DIFFERENTIABLE or (name.startswith("variant") and jnp.issubdtype(t.dtype, jnp.floating))


def _forward(text: str, numbers: Numbers, *primals: Any) -> Any:
    """primals: q, k, v and the others, each with a flag for whether its derivative is requested."""
    for name, p in zip(from_text(text).given, primals[3]):
        if p.perturbed and not _has_gradient(name, p.value) and jnp.issubdtype(p.value.dtype, jnp.floating):
            raise _core.Error(f"attune: {name} has no gradient: jax.lax.stop_gradient it")
    q, k, v, tensors = jax.tree.map(lambda p: p.value, primals, is_leaf=lambda p: hasattr(p, "perturbed"))
    out, lse, saved = _run(from_text(text), numbers, q, k, v, tensors)
    return (out, lse), (q, k, v, tensors, out, lse, saved)


def _backward(text: str, numbers: Numbers, kept: Any, gradients: Any) -> Any:
    spec = from_text(text)
    q, k, v, tensors, out, lse, saved = kept
    d_out, d_lse = (jnp.zeros(g.shape, g.dtype) if isinstance(g, SymbolicZero) else g for g in gradients)
    wanted = [n for n, (name, t) in enumerate(zip(spec.given, tensors)) if _has_gradient(name, t)]
    read = [*zip(_input_places(spec), (q, k, v, *tensors)), *zip(_saved_places(spec), saved),
            (("d_out", spec.layout), d_out)]
    if spec.has_lse:  # otherwise the saved branches are read
        read += [(("out", spec.layout), out), (("lse", spec.lse_axes), lse), (("d_lse", spec.lse_axes), d_lse)]
    written = [(("dq", spec.layout), _like(q)), (("dk", spec.kv_axes), _like(k)), (("dv", spec.kv_axes), _like(v))]
    for n in wanted:
        name, t = spec.given[n], tensors[n]
        written.append((("d_" + name, spec.axes(name)),
                        _like(t) if spec.is_stream(name) else jax.ShapeDtypeStruct(t.shape, jnp.float32)))
    places = [place for place, _ in (*read, *written)]
    dq, dk, dv, *more = _call(spec, True, places, numbers, [t for _, t in read], [t for _, t in written])
    of = dict(zip(wanted, more))
    if spec.leaves_rows:
        there = _rows_there(spec, numbers, q.shape, tensors)
        dq = _only(there, spec.layout, dq, 0)
        if "variant4" in spec.given and not spec.has_lse:  # gates, one row per row of q
            n = spec.given.index("variant4")
            of[n] = _only(there.reshape(of[n].shape[:2]), "bshd", of[n], 0)
    return dq, dk, dv, tuple(of[n].astype(t.dtype) if n in of else None for n, t in enumerate(tensors))


_attend.defvjp(_forward, _backward, symbolic_zeros=True)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _append(text: str, numbers: Numbers, *given: Any) -> tuple[Any, Any, Any, Any]:
    out, lse, cache = _run(from_text(text), numbers, *given)
    return out, lse, *cache


def _refuse(*_: Any) -> Any:
    raise _core.Error("attune: a call that appends to a cache has no gradient: jax.lax.stop_gradient its tensors")


_append.defvjp(_refuse, _refuse)


def _named(error: Exception) -> Exception:
    """XLA's error as the library's, if it is one."""
    status, _, text = str(error).partition(": ")
    return _core.Error(text.partition("\n")[0]) if status == "INVALID_ARGUMENT" else error


@with_options
def attend(q: Any, k: Any, v: Any, *, layout: Layout = "bshd", causal: bool = False, window: Window | None = None,
           scale: float | None = None, return_lse: bool = False, **options: Unpack[Options]) -> Any:
    """attune.attend for JAX, with gradients of q, k, v, bias, sinks and variant tensors, also through lse.

    With k_new and v_new the cache is returned after the output, (out, k, v) or (out, lse, k, v). JAX arrays are
    immutable, so it is a copy, unless k and v are donated to the jitted function that calls this. An append has no
    gradient."""
    for name in ("scale", "causal", "window", "softcap", "dropout", "max_q", "max_k"):
        value = {"scale": scale, "causal": causal, "window": window}.get(name, options.get(name))
        if any(isinstance(n, jax.core.Tracer) for n in (value if isinstance(value, tuple) else (value,))):
            raise _core.Error(f"attune: {name} is traced by jax.jit, and it is part of the compiled program: give a "
                              f"Python number, for example with jax.jit(..., static_argnames={name!r})")
    r = request(layout, causal, window, "no", options)
    if r.spec.backend:
        raise _core.Error("attune: attune.jax has no backend by name")
    if return_lse and not r.spec.has_lse:
        raise _core.Error(f"attune: {r.spec.variant!r} has no lse")
    numbers = (scale_of(scale), r.softcap, r.dropout, r.max_q, r.max_k)
    if r.spec.is_nothing(q, k, v):
        _empty.check(r.spec, q, k, v, r.tensors, numbers[:3], numbers[3:])
        nothing = jnp.zeros((*q.shape[:-1], v.shape[-1]), q.dtype)
        return (nothing, jnp.full(lse_shape(layout, q.shape), -jnp.inf, jnp.float32)) if return_lse else nothing
    q, k, v, *tensors = matched((q, k, v, *r.tensors))
    try:
        out, lse, *cache = (_append if r.spec.append else _attend)(r.spec.text, numbers, q, k, v, tuple(tensors))
    except jax.errors.JaxRuntimeError as error:  # of an eager call; that of a jitted one comes later
        raise _named(error)
    except NotImplementedError as error:
        if "shard_map" not in str(error):
            raise
        raise _core.Error("attune: jax.shard_map outside of jax.jit is not served, because JAX has no symbolic zeros "
                          "there: jax.jit the function") from error
    return (out, *((lse,) if return_lse else ()), *cache) if return_lse or cache else out
