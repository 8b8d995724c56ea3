# SPDX-License-Identifier: Apache-2.0
"""e4m3 for FlashAttention-3's interface. No kernel here reads eight bits, so q, k and v become bf16, which represents
every e4m3 number, and the bf16 kernels run. The factors of q and k are applied to q, that of v to the output.
Probabilities keep bf16 precision, where FlashAttention-3 rounds them to e4m3. attune.torch.counters.converted counts
these calls."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
from torch import Tensor

from .._core import Error
from ..torch._sdpa import counters

E4M3 = torch.float8_e4m3fn
Descales = tuple["Tensor | None", "Tensor | None", "Tensor | None"]  # of q, k and v, each [batch, heads_k] f32


def check(descales: Descales, batch: int, heads_k: int, device: torch.device, **tensors: Tensor | None) -> None:
    """Refuses arguments that do not match a q in e4m3."""
    for name, t in tensors.items():
        if t is not None and t.dtype != E4M3:
            raise Error(f"attune: q is e4m3, and {name} is {t.dtype}: all of q, k and v are, or none")
    for name, t in zip(("q_descale", "k_descale", "v_descale"), descales):
        if t is not None and (t.shape != (batch, heads_k) or t.dtype != torch.float32 or t.device != device):
            raise Error(f"attune: {name} is [batch, heads of keys] in f32, here {(batch, heads_k)} on {device}, not "
                        f"{tuple(t.shape)} {t.dtype} on {t.device}")


def _by_row(factor: Tensor, x: Tensor, cu: Tensor | None) -> Tensor:
    """Expands [batch, heads_k] to rows [batch, seq, head, dim] or, packed, [token, head, dim]."""
    factor = factor.repeat_interleave(x.shape[-2] // factor.shape[1], 1)
    if cu is None:
        return factor[:, None, :, None]
    token = torch.arange(len(x), device=x.device)
    sequence = (torch.bucketize(token, cu.long(), right=True) - 1).clamp(0, len(factor) - 1)
    return factor[sequence][..., None]


def widened(q: Tensor, descales: Descales, cu_q: Tensor | None) -> Tensor:
    """q in bf16, times the factors of its scores."""
    factor = descales[0] if descales[1] is None else descales[1] if descales[0] is None else descales[0] * descales[1]
    return q.to(torch.bfloat16) if factor is None else (q.float() * _by_row(factor, q, cu_q)).to(torch.bfloat16)


def scaled(out: Tensor, descale_v: Tensor | None, cu_q: Tensor | None) -> Tensor:
    """The output times the factor of v."""
    return out if descale_v is None else (out.float() * _by_row(descale_v, out, cu_q)).to(out.dtype)


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Any, *tensors: Any) -> Any:
        out, lse = run()
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise Error("attune: e4m3 has no backward, as in FlashAttention-3")


def count() -> None:
    if not torch.compiler.is_compiling():
        counters.converted += 1


def forward_only(run: Callable[[], tuple[Tensor, Tensor]], tensors: Sequence[Tensor]) -> Any:
    """(out, lse) of run; raises an error when its gradient is requested."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return _Once.apply(run, *tensors)
    return run()
