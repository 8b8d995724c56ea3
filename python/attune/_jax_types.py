# SPDX-License-Identifier: Apache-2.0
"""Types that JAX gives to arrays inside shard_map: the mesh axes along which they vary from device to device."""

from __future__ import annotations

from typing import Any, Sequence

import jax


def varying(t: Any) -> frozenset[Any]:
    """The mesh axes along which an array varies; none outside shard_map, and in JAX before 0.7."""
    aval = jax.typeof(t) if hasattr(jax, "typeof") else None
    kind = getattr(aval, "manual_axis_type", None)  # from 0.10 on
    return frozenset(getattr(aval, "vma", None) or getattr(kind, "varying", None) or ())


def matched(tensors: Sequence[Any]) -> list[Any]:
    """The tensors, all varying along the same axes, as a foreign function requires. The derivative sums over the added
    axes."""
    axes = frozenset[Any]().union(*map(varying, tensors))
    return [_cast(t, tuple(sorted(axes - varying(t), key=str))) for t in tensors] if axes else list(tensors)


def _cast(t: Any, axes: tuple[Any, ...]) -> Any:
    if not axes:
        return t
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(t, axes, to="varying")
    lax: Any = jax.lax  # later versions lack pvary
    return lax.pvary(t, axes)


def result(shape: Sequence[int], dtype: Any, like: Any) -> Any:
    """The type of a result that varies as an array does."""
    axes = varying(like)
    if not axes:
        return jax.ShapeDtypeStruct(shape, dtype)
    aval = jax.typeof(like)
    if hasattr(aval, "manual_axis_type"):
        whole = jax.sharding.NamedSharding(aval.sharding.mesh, jax.sharding.PartitionSpec(*[None] * len(shape)))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=whole, manual_axis_type=aval.manual_axis_type)
    struct: Any = jax.ShapeDtypeStruct  # later versions lack vma
    return struct(shape, dtype, vma=axes)
