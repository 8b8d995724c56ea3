# SPDX-License-Identifier: Apache-2.0
"""Argument checks for calls with no queries or no keys, beyond q, k and v. Such calls never reach the library, which
checks all others."""

from __future__ import annotations

import math
from typing import Any, Sequence

from ._arrays import shape_of
from ._core import Error, last_code, plan
from ._spec import NO_LIMIT, TENSORS, Spec

_SHARED = ("bias", "block_begin", "block_begin_k")  # tensors whose axes may be 1 (broadcast)
_ANY_LINE = "forward f32 b1 h1 q1 k1 d8 full"
_INVALID = 1  # ATTUNE_INVALID


def check(spec: Spec, q: Any, k: Any, v: Any, tensors: Sequence[Any], numbers: Sequence[float],
          lengths: Sequence[int], **results: Any) -> None:
    """Checks a call for which spec.is_nothing is true. numbers: scale, softcap, dropout; lengths: max_q, max_k;
    results: out, lse, d_out, d_lse, each of them or None."""
    _check_backend(spec.backend)
    _, softcap, dropout = numbers
    if spec.softcap and not 0 < softcap < math.inf:
        raise Error(f"attune: softcap {softcap} is not finite and above 0")
    if not 0 <= dropout < 1:
        raise Error(f"attune: dropout {dropout} is not in 0 <= dropout < 1")
    if not all(0 <= n <= NO_LIMIT for n in lengths):
        raise Error(f"attune: lengths {lengths[0]} and {lengths[1]} are not in 0 ... 2^31 - 1")
    of_q, of_k = dict(zip(spec.layout, q.shape)), dict(zip(spec.kv_axes, k.shape))
    rows = (*q.shape[:-1], v.shape[-1])
    for name, t in results.items():
        wanted = tuple(of_q[axis] for axis in spec.lse_axes) if name.endswith("lse") else rows
        if t is not None and shape_of(name, t) != wanted:
            raise Error(f"attune: {name} is {list(shape_of(name, t))}, not {list(wanted)}")
    whole = "page_table" not in spec.given and not lengths[1]  # k has as many rows as there may be keys
    size = {"b": of_q.get("b"), "h": of_q["h"], "q": of_q.get("s"), "k": of_k.get("s") if whole else None}
    for name, t in zip(spec.given, tensors):
        # Excludes tensors of an append and of e4m3.
        if t is not None and TENSORS[name] != "kv" and not name.startswith("descale"):
            _check_shape(name, shape_of(name, t), size)


def _check_backend(name: str) -> None:
    if not name:
        return
    try:
        plan(_ANY_LINE, None, name)
    except Error:
        if last_code() == _INVALID:  # the name is unknown; a backend that does not support the line is known
            raise


def _check_shape(name: str, shape: tuple[int, ...], size: dict[str, int | None]) -> None:
    axes, is_shared, words = TENSORS[name], name in _SHARED, []
    fits = len(shape) == len(axes)
    for axis, n in zip(axes, shape + (-1,) * len(axes)):
        wanted, more = size.get(axis), axis in "qk"
        words.append("any" if wanted is None else ("1 or " if is_shared else "") + f"{wanted}{' and more' * more}")
        fits = fits and (wanted is None or n == wanted or (is_shared and n == 1) or (more and n > wanted))
    if not fits:
        raise Error(f"attune: {name} is {list(shape)}, not [{', '.join(words)}]")
