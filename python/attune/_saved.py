# SPDX-License-Identifier: Apache-2.0
"""The tensors that a forward of a variant saves for its backward: shapes and dtype names; None is the dtype of q. See
docs/nsa.md for native sparse attention and docs/block_sparse.md for content-adaptive blocks."""

from __future__ import annotations

import math
from typing import Sequence

from ._core import Error
from ._spec import Spec

Shapes = list[tuple[tuple[int, ...], "str | None"]]


def saved_shapes(spec: Spec, q: Sequence[int], k: Sequence[int], v: Sequence[int]) -> Shapes:
    """Shapes of the saved tensors, from those of q, k and v."""
    if not spec.saved:
        return []
    for name, shape, axes in (("q", q, spec.layout), ("k", k, spec.kv_axes), ("v", v, spec.kv_axes)):
        if len(shape) != len(axes):
            raise Error(f"attune: {name} has {len(shape)} axes, and layout {axes!r} has {len(axes)}")
    word, *pairs = spec.variant.split()
    for pair in pairs:
        if pair.count("=") != 1:
            raise Error(f"attune: variant {spec.variant!r}: {pair!r} is not name=value")
    parameters = dict(pair.split("=") for pair in pairs)
    size = dict(zip(spec.layout, q))
    if word == "adaptive":
        if spec.layout == "thd":
            raise Error("attune: adaptive has layout 'bshd' or 'bhsd' where it may have a gradient, not 'thd': "
                        "attune.attend takes packed sequences, without one")
        return _adaptive(spec, parameters, size, k[spec.kv_axes.index("s")])
    if "n" not in parameters:
        raise Error("attune: nsa: n= is not given, how many blocks a query takes")
    taken = int(_number(word, parameters, "n", int, 3, 4096, "3"))
    rows = (size["b"], size["s"]) if "b" in size else (1, size["t"])
    heads, groups = size["h"], k[spec.kv_axes.index("h")]
    return [((*rows, 3 * heads, v[-1]), None), ((*rows, 3 * heads, 1), "float32"),
            ((*rows, groups, taken), "int32")]


def _number(word: str, parameters: dict[str, str], name: str, kind: type, least: int, most: int,
            default: str) -> float:
    """A parameter, checked against the library's bounds; the library checks the rest."""
    text = parameters.get(name, default)
    try:
        value: float = kind(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise Error(f"attune: {word}: {name}={text} is not in {least} ... {most}")
    return value


def _adaptive(spec: Spec, parameters: dict[str, str], size: dict[str, int], len_k: int) -> Shapes:
    block = int(_number("adaptive", parameters, "block", int, 1, 1 << 20, "64"))
    density = round(_number("adaptive", parameters, "density", float, 0, 1, "0.1") * 1e6)
    rows, columns = -(-size["s"] // block), -(-len_k // block)

    def kept(shown: int) -> int:
        return max(1, shown * density // 10**6) if shown else 0

    falls = spec.causal and spec.window is None and spec.align == "bottom_right"
    entries = sum(kept(min(columns, max(0, columns - n + 1))) for n in range(rows)) if falls else rows * kept(columns)
    bound = max(1, entries * size["b"] * size["h"])
    return [((size["b"], 1, size["h"], rows + 1), "int32"), ((1, 1, 1, bound), "int32"),
            ((1, 1, 1, bound), "float32")]
