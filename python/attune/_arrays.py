# SPDX-License-Identifier: Apache-2.0
"""Memory for results, from the framework of the queries. Nothing is imported: a caller with a tensor of a framework has
already imported it."""

from __future__ import annotations

import sys
from typing import Any

from ._core import Error


def shape_of(name: str, t: Any) -> tuple[int, ...]:
    try:
        return tuple(t.shape)
    except AttributeError:
        lacks = "shape" if hasattr(t, "__dlpack__") else "__dlpack__"
        raise Error(f"attune: {name}: {type(t)} is not a tensor: it has no {lacks}") from None


def empty(like: Any, shape: tuple[int, ...], dtype: str | None = None) -> Any:
    """An array on the device of `like`, with its dtype or the given one."""
    name = type(like).__module__.partition(".")[0]
    framework = sys.modules.get(name)
    torch = sys.modules.get("torch")
    if torch and isinstance(like, torch.Tensor):
        return torch.empty(shape, dtype=getattr(torch, dtype) if dtype else like.dtype, device=like.device)
    if name == "numpy" and framework:
        return framework.empty(shape, dtype=dtype or like.dtype)
    if name == "cupy" and framework:
        with like.device:
            return framework.empty(shape, dtype=dtype or like.dtype)
    if name in ("jax", "jaxlib"):
        raise Error("attune: arrays of JAX are not made here: give out and lse to attend, or use attune.jax for "
                    "gradients of JAX")
    raise Error(f"attune: arrays of {name!r} are not made here: give out and lse")


def stream_of(like: Any) -> int | None:
    """The framework's current stream, for frameworks whose DLPack export does not provide it."""
    if type(like).__module__.startswith("cupy"):
        return sys.modules["cupy"].cuda.get_current_stream().ptr or 1
    return None
