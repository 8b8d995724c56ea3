# SPDX-License-Identifier: Apache-2.0
"""Shared by the batch wrappers: from the arguments of plan() to an Attention."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from ._attention import (LOG2_E, Attention, angles, check_dtypes, check_layout, check_options, dtype_of, refuse,
                         slopes_of)
from ._pages import Pages, mask_bias, rows_of, starts_tensor

_ENCODINGS = ("NONE", "ROPE_LLAMA", "ALIBI")


@dataclasses.dataclass
class Shape:
    """The numbers of plan() that are the same for every wrapper."""

    heads: int
    heads_k: int
    dim: int
    causal: bool = False
    encoding: str = "NONE"
    window_left: int = -1
    soft_cap: float | None = None
    scale: float | None = None
    rope_scale: float | None = None
    rope_theta: float | None = None
    batch_invariant: bool = False

    def __post_init__(self) -> None:
        if self.encoding not in _ENCODINGS:
            raise refuse(f"pos_encoding_mode {self.encoding!r} is not one of {', '.join(_ENCODINGS)}")
        if self.heads_k < 1 or self.heads % self.heads_k:
            raise refuse(f"{self.heads} heads of queries are not a multiple of {self.heads_k} heads of keys")
        if self.encoding == "ALIBI" and self.soft_cap:
            raise refuse("pos_encoding_mode ALIBI with logits_soft_cap is not served: FlashInfer caps slopes too, and "
                         "attune adds them behind the cap")


@dataclasses.dataclass
class Masks:
    """The masks of plan()."""

    custom: Tensor | None = None
    packed: Tensor | None = None

    def __bool__(self) -> bool:
        return self.custom is not None or self.packed is not None


def alibi(shape: Shape, len_q: list[int], len_k: list[int], device: torch.device, tensors: dict[str, Tensor],
          bottom_right: bool) -> Tensor:
    """Puts slopes into tensors; returns what FlashInfer's lse has in addition: it counts both positions from 0, where
    attune's slopes are 0 on the diagonal. Without a causal mask keys may be behind the query's position, and then
    queries are counted from behind the last key, so that no distance changes its sign."""
    slopes = slopes_of(shape.heads, device)
    tensors["slopes"] = slopes
    if bottom_right:
        behind = [b - a for a, b in zip(len_q, len_k)]
        if len(behind) == 1:
            return slopes[None] * (behind[0] * LOG2_E)
        rows = torch.repeat_interleave(torch.tensor(behind, dtype=torch.float32),
                                       torch.tensor(len_q, dtype=torch.int64)).to(device)
        return slopes * rows[:, None] * LOG2_E
    most = max(len_k, default=0)
    tensors["positions"] = torch.tensor([[most, 0]] * len(len_q), dtype=torch.int64, device=device)
    return slopes[None] * (most * LOG2_E)


def attention_of(shape: Shape, masks: Masks, dtypes: tuple[torch.dtype, torch.dtype], len_q: list[int],
                 len_k: list[int], device: torch.device, *, pages: Pages | None = None, page_size: int = 0,
                 cu_q: Tensor | None = None, cu_k: Tensor | None = None, rows_q: int = 0,
                 kept: tuple[int, int] | None = None) -> Attention:
    """An Attention over pages, or over packed keys (cu_k). rows_q: queries of every sequence; 0: packed, cu_q. kept:
    bounds of the lengths of a graph."""
    causal = shape.causal and not masks
    tensors: dict[str, Tensor] = {}
    copies = pages is not None and (dtypes[0] != dtypes[1] or shape.encoding == "ROPE_LLAMA")
    if kept is not None and (copies or masks or shape.encoding != "NONE"):
        raise refuse("use_cuda_graph is served without custom masks, pos_encoding_mode and eight-bit keys, whose "
                     "tensors change from plan to plan")
    if copies:
        cu_k, rows_q = starts_tensor(len_k, device), 0
        cu_q = starts_tensor(len_q, device) if cu_q is None else cu_q
    if not rows_q:
        assert cu_q is not None
        tensors["cu_q"] = cu_q
    if cu_k is not None:
        tensors["cu_k"] = cu_k
    elif pages is not None:
        tensors.update(used_k=pages.used, page_table=pages.table)
    if masks:
        tensors["bias"] = mask_bias(masks.custom, masks.packed, len_q, len_k, dtypes[0], device)
    shift = alibi(shape, len_q, len_k, device, tensors, causal) if shape.encoding == "ALIBI" else None
    turn_q = turn_k = None
    if shape.encoding == "ROPE_LLAMA":
        first = [torch.arange(b - a, b) for a, b in zip(len_q, len_k)]
        none = torch.empty(0, dtype=torch.int64)
        turn_q = angles(torch.cat([none, *first]).to(device), shape.dim, shape.rope_scale, shape.rope_theta)
        place = torch.cat([none, *(torch.arange(b) for b in len_k)]).to(device)
        turn_k = angles(place, shape.dim, shape.rope_scale, shape.rope_theta)
    lengths = kept or (max(max(len_q, default=0), 1), max(max(len_k, default=0), 1))
    return Attention(
        layout="bshd" if rows_q else "thd", causal=causal, window_left=shape.window_left,
        soft_cap=float(shape.soft_cap or 0.0), scale=shape.dim ** -0.5 if shape.scale is None else float(shape.scale),
        lengths=lengths, tensors=tensors, rows_q=rows_q or 1, batch_invariant=shape.batch_invariant,
        total_q=sum(len_q), dtypes=dtypes, turn_q=turn_q, turn_k=turn_k,
        rows_k=rows_of(pages, page_size) if copies and pages is not None else None, lse_shift=shift,
        padded=kept is not None, page_size=page_size)


class Wrapper:
    """The state that the batch wrappers share."""

    def __init__(self, workspace: Tensor, kv_layout: str, use_cuda_graph: bool, backend: str, jit: Any) -> None:
        check_options({"jit_args": jit}, backend)
        self.device = workspace.device
        self._kv_layout = check_layout(kv_layout)
        self._graph = bool(use_cuda_graph)
        self._kept: dict[str, Tensor] = {}
        self._plan: Attention | None = None

    @property
    def is_cuda_graph_enabled(self) -> bool:
        """Whether plans keep their memory, for graphs."""
        return self._graph

    def reset_workspace_buffer(self, float_workspace_buffer: Tensor,
                               int_workspace_buffer: Tensor | None = None) -> None:
        """For callers of FlashInfer: attune needs no workspace of the caller."""

    def end_forward(self) -> None:
        """For callers of FlashInfer: nothing is left to end."""

    def _keep(self, name: str, t: Tensor, buffer: Tensor | None = None) -> Tensor:
        """With graphs: t in memory that every plan shares, the caller's buffer where there is one."""
        if not self._graph:
            return t
        if name not in self._kept:
            self._kept[name] = t.clone() if buffer is None else buffer[:t.shape[0]]
        kept = self._kept[name]
        if kept.shape != t.shape or kept.dtype != t.dtype:
            raise refuse(f"{name} is {t.dtype} {list(t.shape)}, and the graph keeps {kept.dtype} {list(kept.shape)}: "
                         "the batch of a graph cannot change")
        return kept.copy_(t)

    def _planned(self) -> Attention:
        if self._plan is None:
            raise refuse("run() comes before plan()")
        return self._plan


def dtypes_of(q: Any, kv: Any, out: Any) -> tuple[torch.dtype, torch.dtype]:
    """Of q and of keys, by default float16 and q's."""
    q_dtype = dtype_of("q_data_type", q, torch.float16)
    kv_dtype = dtype_of("kv_data_type", kv, q_dtype)
    check_dtypes(q_dtype, kv_dtype, dtype_of("o_data_type", out, q_dtype))
    return q_dtype, kv_dtype
