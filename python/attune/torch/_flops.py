# SPDX-License-Identifier: Apache-2.0
"""Numbers of floating-point operations for torch.utils.flop_counter.FlopCounterMode: those of dense attention, as
PyTorch counts its own. A causal mask, a window, block lists and variants are not subtracted."""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch.utils.flop_counter import register_flop_formula

from .._spec import Spec, from_text


def _forward(s: Spec, q: Sequence[int], k: Sequence[int], v: Sequence[int], lengths: Sequence[int]) -> int:
    of_q, of_k = dict(zip(s.layout, q)), dict(zip(s.kv_axes, k))
    rows = of_q.get("t") or of_q["b"] * of_q["s"]
    keys = lengths[1] or of_k.get("s") or of_k["t"]  # of one sequence; packed without max_k: all
    return 2 * rows * of_q["h"] * keys * (q[-1] + v[-1])


@register_flop_formula([torch.ops.attune.forward, torch.ops.attune.append])  # type: ignore[untyped-decorator]
def _(q: Any, k: Any, v: Any, tensors: Any, spec: str, numbers: Any, lengths: Any, *_: Any, **__: Any) -> int:
    return _forward(from_text(spec), q, k, v, lengths)


@register_flop_formula(torch.ops.attune.backward)  # type: ignore[untyped-decorator]
def _(d_out: Any, d_lse: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, tensors: Any, saved: Any, spec: str,
      numbers: Any, lengths: Any, *_: Any, **__: Any) -> int:
    return _forward(from_text(spec), q, k, v, lengths) * 5 // 2  # five products where the forward has two
