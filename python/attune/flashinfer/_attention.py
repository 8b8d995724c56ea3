# SPDX-License-Identifier: Apache-2.0
"""What plan() leaves for run(): a spec, its tensors and its numbers, made once. run() allocates results and calls the
library; it reads no tensor's values and waits for nothing."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Union

import torch
from torch import Tensor

from .. import _core
from .._spec import TENSORS, Spec, scale_of, spec_of
from ..torch import _ops
from ..torch._attend import call, is_plain, reproducible
from ..torch._sdpa import counters

LOG2_E = 1.4426950408889634  # lse is in base 2 here, as in FlashInfer
Scale = Union[float, Tensor, None]
Angles = tuple[Tensor, Tensor]  # cos and sin of rotary embeddings, [row, dim / 2] f32
_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_BACKENDS = ("auto", "fa2", "fa3", "cudnn", "cutlass", "trtllm-gen", "cute-dsl", "cute-dsl-prims", "cutile")


def refuse(what: str) -> _core.Error:
    return _core.Error(f"attune.flashinfer: {what}")


def check_options(refused: dict[str, Any], backend: str = "auto") -> None:
    """Refuses keywords that change the mathematics and are given, and backends that FlashInfer does not have. Which
    backend runs is the planner's choice."""
    for name, value in refused.items():
        if value is not None and value is not False and not (isinstance(value, (tuple, list)) and not value):
            raise refuse(f"{name} is given, and attune does not serve it; accepted is None")
    if backend not in _BACKENDS:
        raise refuse(f"backend {backend!r} is not one of {', '.join(_BACKENDS)}")


def dtype_of(name: str, dtype: str | torch.dtype | None, default: torch.dtype) -> torch.dtype:
    """A dtype by itself or by its name."""
    found = default if dtype is None else getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype):
        raise refuse(f"{name} {dtype!r} is not a dtype of PyTorch")
    return found


def check_dtypes(q: torch.dtype, kv: torch.dtype, out: torch.dtype) -> None:
    """Keys and values have q's dtype, or eight bits, which each run converts."""
    if q not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise refuse(f"q is {q}; accepted are float16, bfloat16 and float32, beside keys of e4m3 or e5m2 too")
    if kv != q and kv not in _FP8:
        raise refuse(f"keys are {kv} and q is {q}; accepted are {q}, float8_e4m3fn and float8_e5m2")
    if out != q:
        raise refuse(f"o_data_type is {out} and q is {q}; accepted is {q}")


def by_rows(kv_layout: str, t: Tensor) -> Tensor:
    """A view [..., row, head, dim] of keys or values."""
    return t if kv_layout == "NHD" else t.transpose(-3, -2)


def check_layout(kv_layout: str) -> str:
    if kv_layout not in ("NHD", "HND"):
        raise refuse(f"kv_layout {kv_layout!r} is not one of NHD, HND")
    return kv_layout


def slopes_of(heads: int, device: torch.device) -> Tensor:
    """ALiBi's slopes: 2^(-8 n / heads) for a power of two; for other counts those of the power below, then every second
    one of the power above."""
    power = 1 << (heads.bit_length() - 1)
    exponents = [8 * (h + 1) / power for h in range(power)]
    exponents += [4 * (2 * h + 1) / power for h in range(heads - power)]
    return torch.tensor([2.0 ** -e for e in exponents], device=device)


def angles(rows: Tensor, dim: int, rope_scale: float | None, rope_theta: float | None) -> Angles:
    """Of rotary embeddings as LLaMA has them: pairs (i, i + dim / 2), positions divided by rope_scale."""
    pair = torch.arange(dim // 2, dtype=torch.float64, device=rows.device)
    rate = (rope_theta or 1e4) ** (-2 * pair / dim) / (rope_scale or 1.0)
    turned = rows.double()[:, None] * rate
    return turned.cos().float(), turned.sin().float()


def rotated(x: Tensor, turn: Angles) -> Tensor:
    """x [row, head, dim], rotated in f32 and rounded."""
    cos, sin = (t.unsqueeze(1) for t in turn)
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


def gathered(cache: Tensor, rows: tuple[Tensor, Tensor], dtype: torch.dtype) -> Tensor:
    """Rows of pages [page, row, head, dim] one behind another, in `dtype`."""
    if cache.dtype in _FP8:  # as bytes: not every PyTorch indexes eight-bit floats
        return cache.view(torch.uint8)[rows].view(cache.dtype).to(dtype)
    return cache[rows].to(dtype)


def _split(name: str, scale: Scale) -> tuple[float, Tensor | None]:
    """A scale as a number for the scores, or as a tensor that multiplies q or the output."""
    if scale is None:
        return 1.0, None
    if not isinstance(scale, Tensor):
        return float(scale), None
    if not scale.is_cuda and scale.numel() == 1 and not torch.compiler.is_compiling():
        return float(scale), None
    if scale.dim() > 1 and scale.numel() != 1:
        raise refuse(f"{name} is {list(scale.shape)}; accepted are a number, and a tensor of one or of [head]")
    return 1.0, scale


def _by_head(factor: Tensor, heads: int) -> Tensor:
    factor = factor.float().reshape(-1)
    return factor.repeat_interleave(heads // factor.shape[0])[:, None]


def window_of(causal: bool, window_left: int) -> tuple[int, int] | None:
    """Inclusive, from the diagonal that ends at the last key."""
    return None if window_left < 0 else (window_left, 0 if causal else -1)


@dataclasses.dataclass
class Attention:
    """Attention of q [row, head, dim]. layout "thd": the rows of all sequences, which begin at cu_q. layout "bshd":
    rows_q rows each."""

    layout: str
    causal: bool
    window_left: int
    soft_cap: float
    scale: float                       # of the scores, before q_scale and k_scale
    lengths: tuple[int, int]           # bounds of the lengths of queries and keys; 0: from the tensors
    tensors: dict[str, Tensor]         # by role
    rows_q: int = 1
    batch_invariant: bool = False
    total_q: int | None = None         # rows of q that a run must have
    dtypes: tuple[torch.dtype, torch.dtype] | None = None   # of q and of keys, as planned
    turn_q: Angles | None = None
    turn_k: Angles | None = None
    rows_k: tuple[Tensor, Tensor] | None = None   # page and row of every key, where keys must be copied
    lse_shift: Tensor | None = None    # added to lse, [row or 1, head]
    padded: bool = False               # whether q may have rows behind the last sequence
    page_size: int = 0                 # rows that a page must have; 0: no pages

    def __post_init__(self) -> None:
        self._spec(self.window_left, False)  # refuses now what it refuses, and is found later

    def _spec(self, window_left: int, sinks: bool) -> Spec:
        if window_left >= 0 and "positions" in self.tensors:
            raise refuse("pos_encoding_mode ALIBI with window_left is served with causal=True alone, and not beside "
                         "a custom mask")
        if sinks and "slopes" in self.tensors:
            raise refuse("pos_encoding_mode ALIBI with sinks is not served: slopes count positions from 0 there, which "
                         "changes the weight of a sink")
        names = (*self.tensors, "sinks") if sinks else tuple(self.tensors)
        return spec_of(layout=self.layout, causal=self.causal, window=window_of(self.causal, window_left),
                       align="absolute" if "positions" in names else "bottom_right", softcap=self.soft_cap != 0,
                       reproducible="batch" if self.batch_invariant else reproducible(),
                       given=tuple(name for name in TENSORS if name in names))

    def _check(self, q: Tensor, k: Tensor) -> None:
        if q.dim() != 3:
            raise refuse(f"q is {list(q.shape)}; accepted is [row, head, dim]")
        if self.dtypes is not None and (q.dtype, k.dtype) != self.dtypes:
            raise refuse(f"q is {q.dtype} and keys are {k.dtype}; plan() was given {self.dtypes[0]} and "
                         f"{self.dtypes[1]}, by q_data_type and kv_data_type")
        if self.page_size and k.shape[1] != self.page_size:
            raise refuse(f"pages have {k.shape[1]} rows; plan() was given page_size {self.page_size}")
        if self.total_q is not None and q.shape[0] != self.total_q and not (
                self.padded and q.shape[0] > self.total_q):
            raise refuse(f"q has {q.shape[0]} rows; plan() was given {self.total_q}")

    def run(self, q: Tensor, k: Tensor, v: Tensor, *, out: Tensor | None = None, lse: Tensor | None = None,
            return_lse: bool = False, sinks: Tensor | None = None, window_left: int | None = None,
            q_scale: Scale = None, k_scale: Scale = None, v_scale: Scale = None, lse_base: str = "log2",
            lse_layout: str = "NH") -> Any:
        """out, or (out, lse) with lse [row, head] in base 2, or as lse_base and lse_layout say. k and v are pages or
        rows, [..., row, head, dim]."""
        if lse_base not in ("log2", "ln") or lse_layout not in ("NH", "HN"):
            raise refuse(f"lse_base {lse_base!r} and lse_layout {lse_layout!r} are not of log2, ln and of NH, HN")
        self._check(q, k)
        scale = self.scale
        for name, given in (("q_scale", q_scale), ("k_scale", k_scale)):
            number, factor = _split(name, given)
            scale *= number
            if factor is not None:
                q = (q.float() * _by_head(factor, q.shape[1])).to(q.dtype)
        if self.turn_q is not None:
            q = rotated(q, self.turn_q)
        if self.rows_k is not None:
            k, v = gathered(k, self.rows_k, q.dtype), gathered(v, self.rows_k, q.dtype)
        elif k.dtype != q.dtype:
            k, v = k.to(q.dtype), v.to(q.dtype)
        if self.turn_k is not None:
            k = rotated(k, self.turn_k)
        if (self.rows_k is not None or self.turn_k is not None) and not torch.compiler.is_compiling():
            counters.converted += 1
        tensors = self.tensors
        if sinks is not None:
            tensors = {**tensors, "sinks": sinks.float()}
        spec = self._spec(self.window_left if window_left is None else window_left, sinks is not None)
        made, log_sum = self._call(spec, q, k, v, [tensors[name] for name in spec.given],
                                   (scale_of(scale), self.soft_cap, 0.0), out, return_lse)
        number, factor = _split("v_scale", v_scale)
        if factor is not None:
            made = made.copy_(made * _by_head(factor, made.shape[1]))
        elif number != 1.0:
            made = made.mul_(number)
        if log_sum is None:
            return made
        log_sum = log_sum * LOG2_E if self.lse_shift is None else log_sum * LOG2_E + self.lse_shift
        if lse_base == "ln":
            log_sum = log_sum / LOG2_E
        if lse_layout == "HN":
            log_sum = log_sum.t().contiguous()
        return made, log_sum if lse is None else lse.copy_(log_sum)

    def _blocks(self, t: Tensor) -> Tensor:
        """Rows [row, ...] as the layout has them."""
        if self.layout == "thd":
            return t
        return t.unflatten(0, (-1, self.rows_q)) if "page_table" in self.tensors else t[None]

    def _call(self, spec: Spec, q: Tensor, k: Tensor, v: Tensor, tensors: list[Tensor],
              numbers: tuple[float, float, float], out: Tensor | None, return_lse: bool) -> tuple[Tensor, Any]:
        """(out [row, head, dim], lse [row, head] in base e, or None)."""
        packed = self.layout == "thd"
        if not packed and "page_table" not in self.tensors:  # one request
            k, v = k[None], v[None]
        q = self._blocks(q)
        wants = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
        if wants or not is_plain(q, k, v) or spec.reproducible == "warn":
            made, log_sum = call(spec, q, k, v, tensors, numbers, self.lengths, True)
            made = made if packed else made.flatten(0, 1)
            log_sum = log_sum.t() if packed else log_sum.transpose(1, 2).flatten(0, 1)
            return made if out is None else out.copy_(made), log_sum if return_lse else None
        rows, heads = q.shape[:-2].numel(), q.shape[-2]
        made = q.new_empty(rows, heads, v.shape[-1]) if out is None else out
        log_sum = torch.empty(rows, heads, dtype=torch.float32, device=q.device) if return_lse else None
        if self.padded and packed:
            made.zero_()
            if log_sum is not None:
                log_sum.fill_(-math.inf)
        if made.shape != (rows, heads, v.shape[-1]):
            raise refuse(f"out is {list(made.shape)}; accepted is {[rows, heads, v.shape[-1]]}")
        place, sums = self._blocks(made), None if log_sum is None else self._blocks(log_sum).transpose(-2, -1)
        try:
            _core.run(spec.forward, *numbers, *self.lengths, None, q, k, v, *tensors, place, sums)
        except _core.Error:
            if not spec.is_nothing(q, k, v):
                raise
            empty, none = _ops.run(spec, q, k, v, tensors, numbers, self.lengths)[:2]  # checks the rest
            place.copy_(empty)
            if sums is not None and none is not None:
                sums.copy_(none)
        return made, log_sum
