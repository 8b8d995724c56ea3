"""attune for JAX: a function that can be jitted and differentiated, through XLA's foreign function interface.

    from attune.jax import attend
    out = jax.jit(lambda q, k, v: attend(q, k, v, causal=True))(q, k, v)

It runs on XLA's stream and in XLA's memory; gradients are those of q, k, v, bias and sinks."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from . import _core
from ._attend import lse_shape
from ._spec import Layout, Options, Spec, Window, from_text, request, scale_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["attend"]

_TARGET = "attune"
for _platform, _is_cuda in (("cpu", False), ("CUDA", True)):
    jax.ffi.register_ffi_target(_TARGET, _core.xla_handler(_is_cuda), platform=_platform)

_DIFFERENTIABLE = ("bias", "sinks")
Numbers = tuple[float, float, float, int, int]  # scale, softcap, dropout, max_q, max_k


def _call(spec: Spec, is_backward: bool, places: list[tuple[str, str]], numbers: Numbers, inputs: list[Any],
          results: list[jax.ShapeDtypeStruct]) -> Any:
    fields = {**spec._fields(), "pass": int(is_backward)}
    text = "|".join((" ".join(f"{name}={value}" for name, value in fields.items()), spec.variant,
                     " ".join(f"{name}={axes}" for name, axes in places)))
    scale, softcap, dropout, max_q, max_k = numbers
    call = jax.ffi.ffi_call(_TARGET, results, vmap_method="sequential")
    return call(*inputs, spec=text, scale=np.float32(scale), softcap=np.float32(softcap), dropout=np.float32(dropout),
                len_q=np.int32(max_q), len_k=np.int32(max_k))


def _input_places(spec: Spec) -> list[tuple[str, str]]:
    return [("q", spec.layout), ("k", spec.kv_axes), ("v", spec.kv_axes),
            *((name, spec.axes(name)) for name in spec.given)]


def _rows_there(spec: Spec, numbers: Numbers, shape: tuple[int, ...], tensors: tuple[Any, ...]) -> Any:
    """Which rows of q are in a sequence, the only ones that are written: [token], or [batch, seq]."""
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
    """x where its row is there. `there` has its axes in the order of both layouts: batch before seq."""
    others = tuple(n for n, letter in enumerate(axes) if letter in "hd")
    return jnp.where(jnp.expand_dims(there, others), x, otherwise)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(text: str, numbers: Numbers, q: Any, k: Any, v: Any, tensors: tuple[Any, ...]) -> tuple[Any, Any]:
    spec = from_text(text)
    out = jax.ShapeDtypeStruct((*q.shape[:-1], v.shape[-1]), q.dtype)
    lse = jax.ShapeDtypeStruct(lse_shape(spec.layout, q.shape), jnp.float32)
    places = [*_input_places(spec), ("out", spec.layout), ("lse", spec.lse_axes)]
    made = _call(spec, False, places, numbers, [q, k, v, *tensors], [out, lse])
    if not spec.leaves_rows:
        return tuple(made)
    there = _rows_there(spec, numbers, q.shape, tensors)
    return _only(there, spec.layout, made[0], 0), _only(there, spec.lse_axes, made[1], -jnp.inf)


def _forward(text: str, numbers: Numbers, *primals: Any) -> Any:
    """primals: q, k, v and the others, each with whether a derivative by it is asked for."""
    for name, p in zip(from_text(text).given, primals[3]):
        if p.perturbed and name not in _DIFFERENTIABLE and jnp.issubdtype(p.value.dtype, jnp.floating):
            raise _core.Error(f"attune: {name} has no gradient: jax.lax.stop_gradient it")
    q, k, v, tensors = jax.tree.map(lambda p: p.value, primals, is_leaf=lambda p: hasattr(p, "perturbed"))
    out, lse = _attend(text, numbers, q, k, v, tensors)
    return (out, lse), (q, k, v, tensors, out, lse)


def _backward(text: str, numbers: Numbers, kept: Any, gradients: Any) -> Any:
    spec = from_text(text)
    q, k, v, tensors, out, lse = kept
    d_out, d_lse = (jnp.zeros(g.shape, g.dtype) if isinstance(g, SymbolicZero) else g for g in gradients)
    wanted = [n for n, name in enumerate(spec.given) if name in _DIFFERENTIABLE]
    places = [*_input_places(spec), ("out", spec.layout), ("lse", spec.lse_axes), ("d_out", spec.layout),
              ("d_lse", spec.lse_axes), ("dq", spec.layout), ("dk", spec.kv_axes), ("dv", spec.kv_axes),
              *(("d_" + spec.given[n], spec.axes(spec.given[n])) for n in wanted)]
    results = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in (q, k, v)]
    results += [jax.ShapeDtypeStruct(tensors[n].shape, jnp.float32) for n in wanted]
    dq, dk, dv, *more = _call(spec, True, places, numbers, [q, k, v, *tensors, out, lse, d_out, d_lse], results)
    if spec.leaves_rows:
        dq = _only(_rows_there(spec, numbers, q.shape, tensors), spec.layout, dq, 0)
    of = dict(zip(wanted, more))
    return dq, dk, dv, tuple(of[n].astype(t.dtype) if n in of else None for n, t in enumerate(tensors))


_attend.defvjp(_forward, _backward, symbolic_zeros=True)


def attend(q: Any, k: Any, v: Any, *, layout: Layout = "bshd", causal: bool = False, window: Window | None = None,
           scale: float | None = None, return_lse: bool = False, **options: Unpack[Options]) -> Any:
    """attune.attend for JAX, with gradients of q, k, v, bias and sinks, also through lse. Appending to a cache and
    variants with tensors of their own are not for JAX, whose arrays never change."""
    r = request(layout, causal, window, options.pop("reproducible", "no"), options)
    if r.spec.append or r.spec.saved or r.spec.backend:
        raise _core.Error("attune: attune.jax has no append, no backend and no variant with tensors of its own")
    numbers = (scale_of(scale), r.softcap, r.dropout, r.max_q, r.max_k)
    out, lse = _attend(r.spec.text, numbers, q, k, v, tuple(r.tensors))
    return (out, lse) if return_lse else out
