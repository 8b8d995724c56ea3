# SPDX-License-Identifier: Apache-2.0
"""Attention over tensors of any framework with DLPack: attend, its backward, and a check without a run.

Nothing is copied: kernels read and write the given memory, on the framework's current stream."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

from . import _core, _empty
from ._arrays import empty, shape_of, stream_of
from ._spec import Layout, Options, Request, Window, check_numbers, request, scale_of, with_options

if TYPE_CHECKING:
    from typing_extensions import Unpack


def lse_shape(layout: str, q_shape: Any) -> tuple[int, ...]:
    """[batch, head, seq], or [head, token] for packed sequences."""
    if len(q_shape) != len(layout):
        raise _core.Error(f"attune: q has {len(q_shape)} axes, and layout {layout!r} has {len(layout)}")
    size = dict(zip(layout, q_shape))
    return (size["h"], size["t"]) if layout == "thd" else (size["b"], size["h"], size["s"])


def _arguments(r: Request, scale: float | None) -> tuple[float, float, float, int, int]:
    return scale_of(scale), r.softcap, r.dropout, r.max_q, r.max_k


def _check_nothing(r: Request, scale: float | None, q: Any, k: Any, v: Any, **results: Any) -> None:
    *numbers, max_q, max_k = _arguments(r, scale)
    _empty.check(r.spec, q, k, v, r.tensors, numbers, (max_q, max_k), **results)


def _check_gradient(tensors: tuple[Any, ...]) -> None:
    """Refuses tensors that PyTorch's autograd would have to track."""
    torch = sys.modules.get("torch")
    if torch and torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in tensors):
        raise _core.Error("attune: attune.attend has no gradient: use attune.torch.attend, or torch.no_grad()")


def _check_result(name: str, t: Any) -> None:
    torch = sys.modules.get("torch")
    if torch and isinstance(t, torch.Tensor) and t.is_neg():
        raise _core.Error(f"attune: {name}: a view that PyTorch negates when it reads it: give memory of its own")


def _results(r: Request, q: Any, dim_v: int, return_lse: bool, out: Any, lse: Any) -> tuple[Any, Any]:
    """Allocates out and lse if not given. Rows in no sequence are never written by a kernel; they are 0 and -inf."""
    rows = lse_shape(r.spec.layout, shape_of("q", q)) if out is None or (lse is None and return_lse) else ()
    _check_result("out", out)
    _check_result("lse", lse)
    if out is None:
        out = empty(q, (*q.shape[:-1], dim_v))
        if r.spec.leaves_rows:
            out[...] = 0
    if lse is None and return_lse:
        lse = empty(q, rows, "float32")
        if r.spec.leaves_rows:
            lse[...] = -math.inf
    return out, lse


@with_options
def attend(q: Any, k: Any, v: Any, *, layout: Layout = "bshd", causal: bool = False, window: Window | None = None,
           scale: float | None = None, return_lse: bool = False, out: Any = None, lse: Any = None,
           stream: int | None = None, **options: Unpack[Options]) -> Any:
    """softmax(q kᵀ · scale) v, for tensors with DLPack.

    layout names the axes of q, k, v and out: "bshd", "bhsd", or "thd" for packed sequences, with cu_q (and cu_k). A
    causal mask is aligned to the last query and the last key (align="top_left": to the first). scale=None is
    1/sqrt(dim). Returns out, or (out, lse) with return_lse: lse is f32, in base e, [batch, head, seq] or [head, token].
    If out and lse are given, they are written. stream is an address; None is the framework's current stream. Rows in no
    sequence, behind those of cu_q or used_q, are 0 and -inf; in a given out or lse they are left unchanged. There is no
    gradient: PyTorch tensors that require one are refused. JAX arrays are immutable: use attune.jax unless out is
    given. Attention without queries or keys gives 0, with an lse of -inf.
    """
    if out is None and lse is None and type(q).__module__.partition(".")[0] in ("jax", "jaxlib"):
        from .jax import attend as by_xla
        if stream is not None:
            raise _core.Error("attune: arrays of JAX are on XLA's stream: a stream is for out that is given")
        return by_xla(q, k, v, layout=layout, causal=causal, window=window, scale=scale, return_lse=return_lse,
                      **options)
    r = request(layout, causal, window, "no", options)
    _check_gradient((q, k, v, *r.tensors))
    if out is None or lse is not None or return_lse:
        out, lse = _results(r, q, (shape_of("v", v) or (0,))[-1], return_lse, out, lse)
    else:
        _check_result("out", out)
    try:
        _core.run(r.spec.forward, *_arguments(r, scale), stream_of(q) if stream is None else stream, q, k, v,
                  *r.tensors, out, lse, *(None,) * len(r.spec.saved))
    except (TypeError, OverflowError):
        check_numbers(r, scale)
        raise
    except _core.Error:
        if not r.spec.is_nothing(q, k, v):
            raise
        _check_nothing(r, scale, q, k, v, out=out, lse=lse)
        out[...] = 0
        if lse is not None:
            lse[...] = -math.inf
    return (out, lse) if return_lse else out


def attend_backward(d_out: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *, d_lse: Any = None,
                    layout: Layout = "bshd", causal: bool = False, window: Window | None = None,
                    scale: float | None = None, stream: int | None = None,
                    **options: Unpack[Options]) -> tuple[Any, Any, Any]:
    """(dq, dk, dv) of an attend with the same arguments, from its out and lse. Rows in no sequence have dq 0."""
    r = request(layout, causal, window, "no", options)
    if r.spec.saved:
        raise _core.Error(f"attune: the backward of {r.spec.variant!r} is in attune.torch")
    dq, dk, dv = (empty(t, shape_of(name, t)) for name, t in (("q", q), ("k", k), ("v", v)))
    if r.spec.leaves_rows:
        dq[...] = 0
    try:
        _core.run(r.spec.backward, *_arguments(r, scale), stream_of(q) if stream is None else stream, q, k, v,
                  *r.tensors, out, lse, d_out, d_lse, dq, dk, dv, None, None, *(None,) * len(r.spec.variant_given))
    except (TypeError, OverflowError):
        check_numbers(r, scale)
        raise
    except _core.Error:
        if not r.spec.is_nothing(q, k, v):
            raise
        _check_nothing(r, scale, q, k, v, out=out, lse=lse, d_out=d_out, d_lse=d_lse)
        for gradient in (dq, dk, dv):
            gradient[...] = 0
    return dq, dk, dv


def check(q: Any, k: Any, v: Any, out: Any, *, layout: Layout = "bshd", causal: bool = False,
          window: Window | None = None, **options: Unpack[Options]) -> str:
    """Checks all arguments of an attend, including the integers inside lengths, page tables and block lists; waits for
    the GPU. Returns the problem line, which `attune plan` and `attune bench` accept."""
    r = request(layout, causal, window, "no", options)
    arguments = (r.spec.forward, *_arguments(r, None), None, q, k, v, *r.tensors, out, None,
                 *(None,) * len(r.spec.saved))
    _core.check(*arguments)
    return _core.line(*arguments)
