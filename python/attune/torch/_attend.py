# SPDX-License-Identifier: Apache-2.0
"""attend() with autograd. Eager calls go straight to the library, with an autograd.Function if a gradient is required.
Calls that a compiler, a dispatch mode or a tensor subclass must see go through the operators of _ops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

import torch
import torch.autograd.forward_ad as _dual
from torch import Tensor

from .. import _core
from .._spec import WARN, Layout, Options, Spec, Window, request, scale_of, spec as plain_spec, with_options
from . import _ops
from ._limits import check_tensors, once, refuse_layouts, refuse_unseen

if TYPE_CHECKING:
    from typing_extensions import Unpack

_is_compiling = torch.compiler.is_compiling
_modes = torch._C._len_torch_dispatch_stack
_functorch = torch._C._functorch.peek_interpreter_stack
_autocast = torch._C._is_any_autocast_enabled
_deterministic = torch.are_deterministic_algorithms_enabled
_warn_only = torch.is_deterministic_algorithms_warn_only_enabled
_AUTOCASTS = ("cpu", "cuda")  # PyTorch raises for other devices, including meta
_grads = torch.is_grad_enabled
_tracing = torch._C._is_tracing
_empty_like = torch.empty_like
_NONE = (0.0, 0.0, 0.0)
_WHOLE = (0, 0)


class _Attend(torch.autograd.Function):
    """(out, lse) of a call; _AttendOut returns out alone."""

    @staticmethod
    def forward(ctx: Any, request: Any, q: Tensor, k: Tensor, v: Tensor, *tensors: Any) -> Any:
        spec, numbers, lengths = request
        out, lse, saved = _ops.run(spec, q, k, v, tensors, numbers, lengths)
        if not spec.has_lse:
            ctx.mark_non_differentiable(lse)
        ctx.request = request, len(tensors)
        ctx.save_for_backward(q, k, v, out, lse, *tensors, *saved)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @once
    def backward(ctx: Any, kept: Any, d_out: Tensor | None, d_lse: Tensor | None = None) -> Any:
        (spec, numbers, lengths), count = ctx.request
        q, k, v, out, lse, *rest = kept
        tensors, saved = rest[:count], rest[count:]
        wanted = ctx.needs_input_grad[4:]
        if d_out is None:
            d_out = torch.zeros_like(out)
        dq, dk, dv, more = _ops.run_backward(spec, d_out, d_lse, q, k, v, out, lse, tensors, saved, numbers, lengths,
                                             wanted)
        return None, dq, dk, dv, *(g.to(t.dtype) if w else None for g, t, w in zip(more, tensors, wanted))


class _AttendOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, request: Any, q: Tensor, k: Tensor, v: Tensor) -> Any:
        spec, numbers, like_q = request
        out, forward = _empty_like(q) if like_q else _ops.empty_out(q, v), spec.forward
        lse = _core.run_with_lse(forward, *numbers, 0, 0, None, q, k, v, out, None)
        if lse is None:  # PyTorch before 2.10
            lse = _ops.empty_lse(spec, q)
            _core.run(forward, *numbers, 0, 0, None, q, k, v, out, lse)
        ctx.request = request
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    @once
    def backward(ctx: Any, kept: Any, d_out: Tensor) -> Any:
        spec, numbers, _ = ctx.request
        q, k, v, _, _ = kept
        dq, dk, dv = _empty_like(q), _empty_like(k), _empty_like(v)
        try:
            _core.run(spec.backward, *numbers, 0, 0, None, *kept, d_out, None, dq, dk, dv, None, None)
        except _core.Error:  # a d_out that must be copied, or an empty call
            q, k, v, out, lse = kept
            dq, dk, dv, _ = _ops.run_backward(spec, d_out, None, q, k, v, out, lse, (), (), numbers, _WHOLE, ())
        return None, dq, dk, dv


# Function.apply without its functorch support, a third of its time; functorch transforms use the operators.
_apply = super(torch.autograd.Function, _Attend).apply
_apply_out = super(torch.autograd.Function, _AttendOut).apply


def reproducible() -> str:
    """The reproducibility that torch.use_deterministic_algorithms requires."""
    if not _deterministic():
        return "no"
    return WARN if _warn_only() else "run"


def is_plain(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """True if only the library has to see the call."""
    return (not _is_compiling() and type(q) in _ops.PLAIN and type(k) in _ops.PLAIN and type(v) in _ops.PLAIN
            and not _modes() and _functorch() is None and not q.is_meta and not _tracing())


def quick(spec: Spec, q: Tensor, k: Tensor, v: Tensor, numbers: tuple[float, float, float], like_q: bool) -> Tensor:
    """call() for a spec with only q, k and v, when is_plain and is_usual hold. like_q: whether out has the shape of q.
    On an error the caller may still try call()."""
    if _grads() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return _apply_out((spec, numbers, like_q), q, k, v)
    out = _empty_like(q) if like_q else _ops.empty_out(q, v)
    _core.run(spec.forward, *numbers, 0, 0, None, q, k, v, out, None)
    return out


def is_usual() -> bool:
    """Neither autocast nor forward-mode derivatives."""
    return not _autocast() and _dual._current_level < 0


def call(spec: Spec, q: Tensor, k: Tensor, v: Tensor, tensors: Any, numbers: tuple[float, float, float],
         lengths: tuple[int, int], return_lse: bool, plain: bool | None = None) -> Any:
    """attend() for a Spec, used by the drop-in functions. plain: the result of is_plain, if already known."""
    if (_is_compiling() or _autocast()) and q.device.type in _AUTOCASTS and torch.is_autocast_enabled(q.device.type):
        dtype = torch.get_autocast_dtype(q.device.type)
        q = q if q.dtype == torch.float64 else q.to(dtype)
        if not spec.append:  # an append writes k and v: they must not be copies
            k, v = (t if t.dtype == torch.float64 else t.to(dtype) for t in (k, v))
    if return_lse and not spec.has_lse:
        raise _core.Error(f"attune: {spec.variant!r} has no lse")
    if _dual._current_level >= 0 and any(_dual.unpack_dual(t).tangent is not None for t in (q, k, v)):
        raise _core.Error("attune: forward derivatives (jvp, dual tensors) are not served")
    if plain is None:
        plain = is_plain(q, k, v)
    if not plain and not _is_compiling():
        refuse_unseen()
        check_tensors(("q", "k", "v"), (q, k, v))
    if q.is_nested:
        raise _core.Error("attune: nested tensors are not served: pack the sequences, layout 'thd' with cu_q and cu_k")
    simple = plain and spec.is_simple and not return_lse and not (lengths[0] or lengths[1])
    wants = not simple and torch.is_grad_enabled() and (
        q.requires_grad or k.requires_grad or v.requires_grad or
        (tensors and any(t is not None and t.requires_grad for t in tensors)))
    if wants:
        if spec.append:
            raise _core.Error("attune: a call that appends to a cache has no gradient: use torch.no_grad()")
        if "slopes" in spec.given and tensors[spec.given.index("slopes")].requires_grad:
            raise _core.Error("attune: slopes have no gradient: detach() them")
        if not _is_compiling():
            spec.backward  # raises now if there is no backward
    if not plain:
        op = _ops.append if spec.append else _ops.forward
        out, lse = op(q, k, v, tensors, spec.text, numbers, lengths)[:2]
        return (out, lse) if return_lse else out
    try:
        if simple:
            return quick(spec, q, k, v, numbers, q.shape[-1] == v.shape[-1])
        if wants:
            out, lse = _apply((spec, numbers, lengths), q, k, v, *tensors)
        else:
            out, lse, _ = _ops.run(spec, q, k, v, tensors, numbers, lengths, None, return_lse)
    except RuntimeError as error:
        refuse_layouts(("q", "k", "v", *spec.given), (q, k, v, *tensors))
        if not isinstance(error, _core.Error):
            raise
        read = _copies_of_negated(spec, (q, k, v, *tensors))
        if read is not None:
            q, k, v, *others = read  # type: ignore[assignment]
            return call(spec, q, k, v, others, numbers, lengths, return_lse)
        if simple and (spec.reproducible == WARN or spec.is_nothing(q, k, v)):
            return call(spec, q, k, v, tensors, numbers, lengths, True)[0]
        raise
    return (out, lse) if return_lse else out


def _copies_of_negated(spec: Spec, tensors: Sequence[Tensor | None]) -> list[Tensor | None] | None:
    """Copies of views that PyTorch negates on read (such as the imaginary part of a conjugate), as its own functions
    make them; None if there are none. An append writes k and v, so they are never copied."""
    if any(t is not None and t.is_neg() for t in (tensors[1:3] if spec.append else ())):
        return None
    if not any(t is not None and t.is_neg() for t in tensors):
        return None
    return _ops.as_read(tensors)


@with_options
def attend(q: Tensor, k: Tensor, v: Tensor, *, layout: Layout = "bshd", causal: bool = False,
           window: Window | None = None, scale: float | None = None, return_lse: bool = False,
           **options: Unpack[Options]) -> Any:
    """attune.attend for PyTorch, with gradients of q, k, v, bias, sinks and variant tensors, also through lse.

    Works in eager code, torch.compile, autocast, checkpointing and CUDA graphs. With
    torch.use_deterministic_algorithms, results are the same in every run (reproducible="run"); with its warn_only, a
    call without such an implementation runs with a warning. Attention without queries or keys gives 0, with an lse of
    -inf.
    """
    numbers = _NONE if scale is None else (scale_of(scale), 0.0, 0.0)
    if not options:
        return call(plain_spec(layout, causal, window, reproducible()), q, k, v, (), numbers, _WHOLE, return_lse)
    r = request(layout, causal, window, reproducible(), options)
    check_tensors(r.spec.given, r.tensors)
    return call(r.spec, q, k, v, r.tensors, (scale_of(scale), r.softcap, r.dropout), (r.max_q, r.max_k), return_lse)
