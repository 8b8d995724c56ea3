# SPDX-License-Identifier: Apache-2.0
"""The operators attune::forward, attune::backward and attune::append, which compilers and dispatch modes see.

Eager code bypasses them: an operator registered in Python costs 5 us per call, and 28 with autograd (docs/python.md),
more than the rest of a call. Both paths share `_run` and `_run_backward`."""

from __future__ import annotations

import math
from typing import Any, Sequence

import torch
from torch import Tensor

from .. import _core, _empty
from .._attend import lse_shape
from .._saved import saved_shapes
from .._spec import WARN, Spec, from_text
from ._limits import check_devices, warn_of_order

Numbers = Sequence[float]  # scale, softcap, dropout
Lengths = Sequence[int]    # max_q, max_k; 0: from the tensors


PLAIN = frozenset((Tensor, torch.nn.Parameter))  # types that own their memory


def empty_out(q: Tensor, v: Tensor) -> Tensor:
    """An empty out with q's memory layout, so that heads and rows keep their order."""
    if q.size(-1) == v.size(-1):
        return torch.empty_like(q)
    order = sorted(range(q.dim() - 1), key=q.stride, reverse=True)
    # Not a view: autograd forbids in-place changes to a view made by a custom function.
    return torch.empty_permuted((*q.shape[:-1], v.shape[-1]), (*order, q.dim() - 1), dtype=q.dtype, device=q.device)


def empty_lse(spec: Spec, q: Tensor) -> Tensor:
    shape = lse_shape(spec.layout, q.shape) if spec.has_lse else (0,)
    return torch.empty(shape, dtype=torch.float32, device=q.device)


def empty_saved(spec: Spec, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    return [torch.empty(shape, dtype=getattr(torch, dtype) if dtype else q.dtype, device=q.device)
            for shape, dtype in saved_shapes(spec, q.shape, k.shape, v.shape)]


def run(spec: Spec, q: Tensor, k: Tensor, v: Tensor, tensors: Sequence[Tensor | None], numbers: Numbers,
        lengths: Lengths, out: Tensor | None = None, lse: bool = True) -> tuple[Tensor, Tensor | None, list[Tensor]]:
    if out is None:
        out = empty_out(q, v)
        if spec.leaves_rows:
            out.zero_()
    log_sum = empty_lse(spec, q) if lse else None
    if log_sum is not None and spec.leaves_rows:
        log_sum.fill_(-math.inf)
    saved = empty_saved(spec, q, k, v)
    try:
        _core.run(spec.forward, *numbers, *lengths, None, q, k, v, *tensors, out, log_sum if spec.has_lse else None,
                  *saved)
    except _core.Error as refusal:
        if not spec.is_nothing(q, k, v):
            if spec.reproducible != WARN:
                raise
            found = run(spec.in_any_order, q, k, v, tensors, numbers, lengths, out, lse)
            warn_of_order(refusal)
            return found
        _empty.check(spec, q, k, v, tensors, numbers, lengths)
        out.zero_()
        if log_sum is not None:
            log_sum.fill_(-math.inf)
    return out, log_sum, saved


def run_backward(spec: Spec, d_out: Tensor, d_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor,
                 lse: Tensor, tensors: Sequence[Tensor | None], saved: Sequence[Tensor], numbers: Numbers,
                 lengths: Lengths, wanted: Sequence[bool]) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """dq, dk, dv, and the wanted gradients of `tensors`; the others are empty."""
    dq, dk, dv, more = empty_gradients(spec, q, k, v, tensors, wanted)
    of = {name: gradient for name, gradient, w in zip(spec.given, more, wanted) if w}
    if d_out.stride(-1) != 1:
        d_out = d_out.contiguous()
    if d_out.is_neg():  # such as the gradient of the imaginary part of a conjugate
        d_out = d_out.resolve_neg()
    if not spec.has_lse:  # tracing provides a gradient for everything
        d_lse = None
    if d_lse is not None and d_lse.is_neg():
        d_lse = d_lse.resolve_neg()
    joined = (out, lse) if spec.has_lse else (None, None)
    try:
        _core.run(spec.backward, *numbers, *lengths, None, q, k, v, *tensors, *joined, *saved, d_out, d_lse, dq, dk, dv,
                  of.get("bias"), of.get("sinks"), *(of.get(name) for name in spec.variant_given))
    except _core.Error as refusal:
        if not spec.is_nothing(q, k, v):
            if spec.reproducible != WARN:
                raise
            found = run_backward(spec.in_any_order, d_out, d_lse, q, k, v, out, lse, tensors, saved, numbers, lengths,
                                 wanted)
            warn_of_order(refusal)
            return found
        _empty.check(spec, q, k, v, tensors, numbers, lengths)
        for gradient in (dq, dk, dv):  # the others are 0
            gradient.zero_()
    return dq, dk, dv, more


def empty_gradients(spec: Spec, q: Tensor, k: Tensor, v: Tensor, tensors: Sequence[Tensor | None],
                    wanted: Sequence[bool]) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    dq = torch.zeros_like(q) if spec.leaves_rows else torch.empty_like(q)
    # Variant streams have gradients in their dtype; bias, sinks, gates and weights have f32 gradients.
    more = [torch.zeros(t.shape, dtype=t.dtype if spec.is_stream(name) else torch.float32, device=t.device)
            if w and t is not None else q.new_empty(0) for name, t, w in zip(spec.given, tensors, wanted)]
    return dq, torch.empty_like(k), torch.empty_like(v), more


def as_read(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Copies of views that are negated on read: the dispatcher resolves q, k and v, but not lists."""
    return [t if t is None else t.resolve_neg() for t in tensors]


# Schemas are explicit: PyTorch infers `list[Tensor]` from a signature only from 2.7 on.
# Packages from torch._inductor.aoti_compile_and_package pass None for an empty list (PyTorch 2.9 to 2.15).
@torch.library.custom_op("attune::forward", mutates_args=(), schema=(
    "(Tensor q, Tensor k, Tensor v, Tensor?[]? tensors, str spec, float[] numbers, SymInt[] lengths) "
    "-> (Tensor, Tensor, Tensor[])"))
def forward(q: Tensor, k: Tensor, v: Tensor, tensors: Sequence[Tensor | None] | None, spec: str,
            numbers: Sequence[float], lengths: Sequence[int]) -> tuple[Tensor, Tensor, list[Tensor]]:
    out, lse, saved = run(from_text(spec), q, k, v, as_read(tensors or ()), numbers, lengths)
    assert lse is not None
    return out, lse, saved


@forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, tensors: Sequence[Tensor | None] | None, spec: str, numbers: Numbers,
      lengths: Lengths) -> Any:
    s = from_text(spec)
    check_devices(("q", "k", "v", *s.given), (q, k, v, *(tensors or ())))
    return empty_out(q, v), empty_lse(s, q), empty_saved(s, q, k, v)


@torch.library.custom_op("attune::backward", mutates_args=(), schema=(
    "(Tensor d_out, Tensor? d_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor?[] tensors, "
    "Tensor[] saved, str spec, float[] numbers, SymInt[] lengths, bool[] wanted) "
    "-> (Tensor, Tensor, Tensor, Tensor[])"))
def backward(d_out: Tensor, d_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
             tensors: Sequence[Tensor | None], saved: Sequence[Tensor], spec: str, numbers: Sequence[float],
             lengths: Sequence[int], wanted: Sequence[bool]) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    return run_backward(from_text(spec), d_out, d_lse, q, k, v, out, lse, as_read(tensors), saved, numbers, lengths,
                        wanted)


@backward.register_fake
def _(d_out: Tensor, d_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
      tensors: Sequence[Tensor | None], saved: Sequence[Tensor], spec: str, numbers: Numbers, lengths: Lengths,
      wanted: Sequence[bool]) -> Any:
    return empty_gradients(from_text(spec), q, k, v, tensors, wanted)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, tensors, ctx.spec, ctx.numbers, ctx.lengths = inputs
    out, lse, saved = output
    ctx.count = 0 if tensors is None else len(tensors)
    ctx.others = tensors is not None
    ctx.save_for_backward(q, k, v, out, lse, *(tensors or ()), *saved)
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None, _: Any) -> Any:
    q, k, v, out, lse, *rest = ctx.saved_tensors
    tensors, saved = rest[:ctx.count], rest[ctx.count:]
    wanted = _wanted_of(tensors, ctx.needs_input_grad[3])
    if d_out is None:
        d_out = torch.zeros_like(out)
    dq, dk, dv, more = backward(d_out, d_lse, q, k, v, out, lse, tensors, saved, ctx.spec, ctx.numbers, ctx.lengths,
                                wanted)
    others = [g.to(t.dtype) if w else None for g, t, w in zip(more, tensors, wanted)]
    return dq, dk, dv, others if ctx.others else None, None, None, None


def _wanted_of(tensors: Sequence[Tensor | None], needs: Any) -> list[bool]:
    return list(needs) if isinstance(needs, (list, tuple)) else [bool(needs) and t is not None and
                                                                  t.is_floating_point() for t in tensors]


forward.register_autograd(_gradients, setup_context=_keep)


@torch.library.custom_op("attune::append", mutates_args=("k", "v"),
                         schema="(Tensor q, Tensor(a!) k, Tensor(b!) v, Tensor?[] tensors, str spec, float[] numbers, "
                                "SymInt[] lengths) -> (Tensor, Tensor)")
def append(q: Tensor, k: Tensor, v: Tensor, tensors: Sequence[Tensor | None], spec: str, numbers: Sequence[float],
           lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """A forward that writes new keys and values into the cache given as k and v."""
    out, lse, _ = run(from_text(spec), q, k, v, as_read(tensors), numbers, lengths)
    assert lse is not None
    return out, lse


@append.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, tensors: Sequence[Tensor | None], spec: str, numbers: Numbers,
      lengths: Lengths) -> Any:
    s = from_text(spec)
    check_devices(("q", "k", "v", *s.given), (q, k, v, *tensors))
    return empty_out(q, v), empty_lse(s, q)
