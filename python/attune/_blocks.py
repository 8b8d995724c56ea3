# SPDX-License-Identifier: Apache-2.0
"""Block lists for block-sparse attention, from a named pattern or a block mask: docs/block_sparse.md."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from . import _core
from ._arrays import empty, shape_of, stream_of
from ._spec import Layout, Options, Window, request


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Lists of key blocks for every query block, and the same by key block for a backward."""

    block_size: tuple[int, int]
    begin: Any
    column: Any
    begin_k: Any
    row_k: Any

    def options(self) -> Options:
        """The options to pass to attend."""
        return {"block_size": self.block_size, "block_begin": self.begin, "block_column": self.column,
                "block_begin_k": self.begin_k, "block_row_k": self.row_k}


def blocks(q: Any, k: Any, pattern: str | None = None, *, mask: Any = None, block: int | tuple[int, int] = 64,
           layout: Layout = "bshd", causal: bool = False, window: Window | None = None, by_batch: bool = False,
           by_head: bool = False, align: Literal["bottom_right", "top_left"] = "bottom_right") -> Blocks:
    """Builds lists for an attend of q and k with this mask, on q's device and stream. They have no block that the mask
    hides, so the attend has the same causal, window and align. For absolute positions give `mask`, and neither causal
    nor window.

    pattern: "random density=0.1 seed=7", "local_window window=512", ...; or mask: one bool per block, [batch, head,
    rows, columns], where batch and head are 1 or q's. by_batch and by_head: the lists of a pattern are not shared by
    sequences or by heads.
    """
    if (pattern is None) == (mask is None):
        raise _core.Error("attune: blocks need a pattern or a mask, and not both")
    if layout == "thd":
        raise _core.Error("attune: blocks of packed sequences are not built here: layout is bshd or bhsd")
    if pattern is not None and not isinstance(pattern, str):
        raise _core.Error(f"attune: pattern {pattern!r} is not a string")
    if align not in ("bottom_right", "top_left"):
        raise _core.Error(f"attune: align {align!r} is not one of bottom_right, top_left; for absolute positions give "
                          "mask, without causal and window, and attend hides the rest")
    size = tuple(block) if isinstance(block, (tuple, list)) else (block, block)
    if len(size) != 2 or not all(isinstance(n, int) and n > 0 for n in size):
        raise _core.Error(f"attune: block {block!r} is not an integer above 0, nor a pair of them")
    r = request(layout, causal, window, "no", {"block_size": size, "align": align})
    extent, of_k = (dict(zip(layout, shape_of(name, t))) for name, t in (("q", q), ("k", k)))
    for name, found in (("q", extent), ("k", of_k)):
        if len(found) != 4:
            raise _core.Error(f"attune: {name} has {len(found)} axes, and layout {layout!r} has 4")
    rows, columns = (-(-length // n) for length, n in zip((extent["s"], of_k["s"]), size))
    batch, heads = extent["b"] if by_batch else 1, extent["h"] if by_head else 1
    if mask is not None:
        if len(shape := shape_of("mask", mask)) != 4:
            raise _core.Error(f"attune: mask has {len(shape)} axes, and [batch, head, rows, columns] has 4")
        batch, heads = shape[:2]
    lists = [("q", layout), ("k", layout), ("block_begin", "bhn"), ("block_column", "n"), ("block_begin_k", "bhn"),
             ("block_row_k", "n")]
    fields = {**r.spec._fields(), "pass": 1, "block_bound": 1}  # a backward has lists by key block too
    most = batch * heads * rows * columns
    arguments = (0.0, 0.0, 0.0, 0, 0, stream_of(q), q, k)
    if pattern is not None:
        handle = _core.spec(fields, "", "", tuple(lists[:2]))
        most = _core.blocks_bound(pattern, batch, heads, True, handle, *arguments)
    most = max(1, most)
    begin, column = empty(q, (batch, heads, rows + 1), "int32"), empty(q, (most,), "int32")
    begin_k, row_k = empty(q, (batch, heads, columns + 1), "int32"), empty(q, (most,), "int32")
    handle = _core.spec({**fields, "block_bound": most}, "", "", tuple(lists))
    _core.blocks_build(pattern, mask, handle, *arguments, begin, column, begin_k, row_k)
    return Blocks(size, begin, column, begin_k, row_k)
