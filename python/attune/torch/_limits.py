# SPDX-License-Identifier: Apache-2.0
"""Refusals with a message: second derivatives, transforms that would have to see inside a call, and tensors whose
memory does not hold their values."""

from __future__ import annotations

import functools
import warnings
from typing import Any, Sequence

import torch
from torch import Tensor

from .. import _core

_functorch = torch._C._functorch.peek_interpreter_stack
_batched = torch._C._functorch.is_legacy_batchedtensor
_TRANSFORMS = (torch._C._functorch.TransformType.Vmap, torch._C._functorch.TransformType.Grad)
_tracing = torch._C._is_tracing
_grad = torch.is_grad_enabled


class _NoSecond(torch.autograd.Function):
    """Identity on `count` gradients that keeps their dependencies; its backward raises."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> Any:
        return tensors[:count]

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise _core.Error("attune: there is no second derivative: its backward has no gradient")


def once(backward: Any) -> Any:
    """Wraps a backward that has no derivative. PyTorch's once_differentiable treats gradients as constants if the
    incoming one needs no gradient, so a second derivative through them would be lost silently. Saved tensors are read
    once, as checkpoints require, and passed on."""
    @functools.wraps(backward)
    def run(ctx: Any, *given: Any) -> Any:
        if any(t is not None and _batched(t) for t in given):
            raise _core.Error("attune: gradients of many vectors at once (is_grads_batched) are not served")
        saved = ctx.saved_tensors
        if not _grad():
            return backward(ctx, saved, *given)
        with torch.no_grad():
            found = backward(ctx, saved, *given)
        return _NoSecond.apply(len(found), *found, *given, *saved)

    return run


def refuse_unseen() -> None:
    """Refuses transforms that would have to see inside a call."""
    inside = _functorch()
    if inside is not None and inside.key() in _TRANSFORMS:
        raise _core.Error("attune: transforms of torch.func (vmap, grad, jacrev) are not served; "
                          "attune.torch.scaled_dot_product_attention leaves them to PyTorch")
    if _tracing():
        raise _core.Error("attune: torch.jit.trace is not served: use torch.compile or torch.export; "
                          "attune.torch.scaled_dot_product_attention leaves it to PyTorch")


def refuse_layouts(names: Sequence[str], tensors: Sequence[Tensor | None]) -> None:
    """Refuses sparse and packed tensors. PyTorch's own errors name neither the tensor nor what is accepted."""
    for name, t in zip(names, tensors):
        if t is not None and t.layout is not torch.strided and not t.is_nested:
            raise _core.Error(f"attune: {name}: a tensor of layout {t.layout}, whose memory is not its numbers row by "
                              "row: give to_dense() of it")


def check_devices(names: Sequence[str], tensors: Sequence[Tensor | None]) -> None:
    """The library's device check, for fake and meta tensors, which have no memory."""
    first = next(t for t in tensors if t is not None)
    for name, t in zip(names, tensors):
        if t is not None and t.device != first.device:
            raise _core.Error(f"attune: {name} is on {t.device}, and {names[0]} on {first.device}")


def warn_of_order(refusal: Exception) -> None:
    warnings.warn("attune: this call has no deterministic implementation here, but you set "
                  f"'torch.use_deterministic_algorithms(True, warn_only=True)': {refusal}", stacklevel=3)


def check_tensors(names: Sequence[str], tensors: Sequence[Any]) -> None:
    for name, t in zip(names, tensors):
        if not isinstance(t, Tensor):
            raise _core.Error(f"attune: {name}: {type(t)} is not a tensor of PyTorch")
        if name == "bias" and t.dtype == torch.bool:
            raise _core.Error("attune: bias: torch.bool is the dtype of a mask, and a bias is added to the scores: "
                              "give floats, 0 where a query sees a key and -inf where not")
