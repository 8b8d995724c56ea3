# SPDX-License-Identifier: Apache-2.0
"""Attention over arrays that are sharded by batch or by head: every device runs its own part, and nothing is gathered.

XLA knows nothing about a foreign function, so it would gather all arrays and run the whole on every device. A
custom_partitioning tells it that sequences, and heads with their KV head, are independent."""

from __future__ import annotations

import math
from typing import Any, Callable, Sequence

import jax
from jax.sharding import NamedSharding, PartitionSpec

from ._spec import Spec

# Tensors whose axes of sequences and heads are sharded with those of q. Lists and pages mix sequences; dropout depends
# on the number of a sequence and of a head.
_SERVED = frozenset(("bias", "sinks", "slopes", "used_q", "used_k", "left_pad"))
_QUERY_HEADS = frozenset(("q", "out", "lse", "d_out", "d_lse", "dq", "bias", "d_bias", "sinks", "d_sinks", "slopes"))
Places = Sequence[tuple[str, str]]
Function = Callable[..., Any]


def is_served(spec: Spec, places: Places, tensors: Sequence[Any]) -> bool:
    """Whether the call may be sharded: several devices, no tensor inside shard_map, and no option that mixes
    sequences or heads."""
    if jax.device_count() == 1 or not hasattr(jax.sharding, "get_abstract_mesh"):
        return False
    if spec.layout == "thd" or spec.variant or spec.dropout or spec.append or not _SERVED.issuperset(spec.given):
        return False
    if any(t.ndim != len(axes) for (_, axes), t in zip(places, tensors)):
        return False
    heads, heads_kv = (_size(places, tensors, name, "h") for name in "qk")
    return heads_kv > 0 and heads % heads_kv == 0 and not jax.sharding.get_abstract_mesh().manual_axes


def sharded(run: Function, places: Places, tensors: Sequence[Any], wanted: Sequence[jax.ShapeDtypeStruct]) -> Any:
    """run(wanted, *tensors), so that it can be sharded. wanted: the results, which are the last places."""
    from jax.custom_batching import custom_vmap
    from jax.experimental.custom_partitioning import custom_partitioning

    inputs, results = places[:len(tensors)], places[len(tensors):]
    batch, heads, heads_kv = (_size(places, tensors, name, axis) for name, axis in (("q", "b"), ("q", "h"), ("k", "h")))

    def spec_of(place: tuple[str, str], shape: Sequence[int], by_batch: Any, by_head: Any) -> PartitionSpec:
        name, axes = place
        parts = {"b": (batch, by_batch), "h": (heads if name in _QUERY_HEADS else heads_kv, by_head)}
        return PartitionSpec(*(parts[a][1] if a in parts and n == parts[a][0] and n > 1 else None
                               for a, n in zip(axes, shape)))

    def parts_of(given: Sequence[Any]) -> list[jax.ShapeDtypeStruct]:
        """The results of a part of the sequences and heads."""
        size = {name + axis: _size(inputs, given, name, axis) for name, axis in (("q", "b"), ("q", "h"), ("k", "h"))}
        made = []
        for (name, axes), r in zip(results, wanted):
            part = {"b": (batch, size["qb"]), "h": (heads, size["qh"]) if name in _QUERY_HEADS else
                    (heads_kv, size["kh"])}
            shape = [part[a][1] if a in part and n == part[a][0] else n for a, n in zip(axes, r.shape)]
            made.append(jax.ShapeDtypeStruct(shape, r.dtype))
        return made

    def whole(*given: Any) -> Any:
        return tuple(run(list(wanted), *given))

    def axes_of(mesh: Any, given: Sequence[Any]) -> tuple[Any, Any]:
        """The mesh axes of sequences and heads: those of q, where they divide."""
        place = dict(zip(inputs[0][1], _entries(given[0])))
        return (place["b"] if batch % _ways(mesh, place["b"]) == 0 else None,
                place["h"] if heads_kv % _ways(mesh, place["h"]) == 0 else None)

    def shardings(mesh: Any, at: Places, shapes: Sequence[Any], by: tuple[Any, Any]) -> tuple[NamedSharding, ...]:
        return tuple(NamedSharding(mesh, spec_of(place, s.shape, *by)) for place, s in zip(at, shapes))

    def partition(mesh: Any, given: Any, made: Any) -> Any:
        by = axes_of(mesh, given)

        def local(*parts: Any) -> Any:
            out = list(run(parts_of(parts), *parts))
            for n, (place, w) in enumerate(zip(results, wanted)):
                if place[0] in ("d_bias", "d_sinks"):  # shared by sequences or heads that other devices have
                    for axis in by:
                        if axis is not None and axis not in tuple(spec_of(place, w.shape, *by)):
                            out[n] = jax.lax.psum(out[n], axis)
            return tuple(out)

        return mesh, local, shardings(mesh, results, made, by), shardings(mesh, inputs, given, by)

    def infer(mesh: Any, given: Any, made: Any) -> Any:
        return shardings(mesh, results, made, axes_of(mesh, given))

    call = custom_partitioning(whole)
    rule = _rule(inputs, results, [t.shape for t in tensors], [w.shape for w in wanted], batch, heads, heads_kv)
    call.def_partition(partition, infer, sharding_rule=rule)
    batched = custom_vmap(lambda *t: call(*t))

    @batched.def_vmap  # type: ignore[untyped-decorator]
    def _(size: int, is_batched: Any, *given: Any) -> Any:
        out = jax.vmap(whole, [0 if b else None for b in is_batched], axis_size=size)(*given)
        return tuple(out), (True,) * len(results)

    return batched(*tensors)


def _size(places: Places, tensors: Sequence[Any], name: str, axis: str) -> int:
    at, axes = next((n, axes) for n, (other, axes) in enumerate(places) if other == name)
    return int(tensors[at].shape[axes.index(axis)])


def _entries(given: Any) -> list[Any]:
    """The mesh axes of every axis of an array; None where it is whole."""
    spec = tuple(given.sharding.spec) if isinstance(given.sharding, NamedSharding) else ()
    return [*spec, *[None] * (len(given.shape) - len(spec))]


def _ways(mesh: Any, axis: Any) -> int:
    return math.prod(mesh.shape[a] for a in (axis if isinstance(axis, tuple) else (axis,)) if a is not None)


def _rule(inputs: Places, results: Places, shapes: Sequence[Any], made: Sequence[Any], batch: int, heads: int,
          heads_kv: int) -> Any:
    """The rule for Shardy: which axes of which tensors go together. Every other axis is a factor of its own, which is
    not sharded."""
    from jax.experimental.custom_partitioning import ArrayMapping, CompoundFactor, SdyShardingRule

    whole: list[str] = []

    def factor(name: str, axis: str, size: int) -> Any:
        if axis == "b" and size == batch:
            return "b"
        if axis == "h" and name not in _QUERY_HEADS and heads_kv > 1:
            return "h"
        if axis == "h" and size == heads and heads_kv > 1:
            if heads == heads_kv:
                return "h"
            if "g" not in whole:
                whole.append("g")  # in the order of appearance, as the rule wants them
            return CompoundFactor("h", "g")
        whole.append(f"w{len(whole)}")
        return whole[-1]

    mappings = [ArrayMapping(*(factor(name, axis, size) for axis, size in zip(axes, shape)))
                for (name, axes), shape in zip((*inputs, *results), (*shapes, *made))]
    groups: dict[str, Any] = {} if heads == heads_kv or heads_kv == 1 else {"g": heads // heads_kv}
    return SdyShardingRule(tuple(mappings[:len(inputs)]), tuple(mappings[len(inputs):]),
                           need_replication_factors=tuple(whole), **groups)
