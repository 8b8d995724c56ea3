# SPDX-License-Identifier: Apache-2.0
"""Caches of keys and values that track the length of each sequence: prefill, chunks and decode are calls of one object.
New keys that do not fit are refused before anything is written."""

from __future__ import annotations

import functools
from operator import index
from typing import Any, Sequence

from . import _core
from ._arrays import empty, shape_of, stream_of
from ._attend import _arguments, _check_gradient, _results
from ._spec import Layout, Request, Window, check_numbers, check_whole, request
from ._view import View, dtype_number

_NSA_WEIGHTS = range(5, 15)  # numbers of phi's tensors, docs/nsa.md
_NSA_STREAMS = ("k", "v", "k_select", "v_select", "k_window", "v_window", "k_compressed", "v_compressed")


def _check_backend(r: Request) -> None:
    if r.spec.backend:
        raise _core.Error(f"attune: a cache has the planner's backend, not one by name: {r.spec.backend!r} is given")


def _within(what: str, given: int, most: int) -> int:
    """Checks a number against the library's limit, because the library would truncate numbers of more than 32 bits."""
    if not 0 <= index(given) <= most:
        raise _core.Error(f"attune: {what} {given} is not in 0 ... {most}")
    return given


def _check_sequences(sequences: Any, count: int) -> None:
    """Called only after a refusal: checking every number beforehand would slow down each call."""
    if sequences is None:
        return
    if not hasattr(sequences, "__len__") or not all(hasattr(n, "__index__") for n in sequences):
        raise _core.Error(f"attune: sequences {sequences!r} are not integers, one for each of q's batch")
    for n in sequences:
        _within("sequence", n, count - 1)


_REFUSALS = (_core.Error, OverflowError, TypeError)  # the last two: Python's own, for bad numbers


class Cache:
    """Keys and values of up to `sequences` sequences of up to `capacity` keys each, on the CPU or on a GPU.

        cache = attune.Cache(heads=8, dim=128, sequences=64, capacity=8192, dtype="bfloat16", device="cuda:0", page=16)
        out = cache.attend(q, k_new, v_new, sequences=[3, 17], causal=True)     # appends, then attends
        cache.resize(17, cache.length(17) - 2)                                  # two drafted tokens are taken back

    page: keys per page, from a pool of `pages` that all sequences share (0: as many as they can ever need). Without it,
    each sequence has its own memory. k and v are that memory, [sequence or page, row, head, dim]. Use it from one
    thread at a time, with all calls on one stream or ordered as if they were. See docs/kv_cache.md.
    """

    def __init__(self, *, heads: int, dim: int, sequences: int, capacity: int, dtype: Any = "float32",
                 device: Any = "cpu", dim_v: int = 0, page: int = 0, pages: int = 0) -> None:
        for what, size in (("heads", heads), ("dim", dim), ("dim_v", dim_v), ("sequences", sequences),
                           ("capacity", capacity), ("page", page), ("pages", pages)):
            check_whole(what, size)
        self._handle = _core.cache_create(dtype_number(dtype), heads, dim, dim_v, sequences, capacity, page, pages,
                                          str(device))
        self.heads: int = heads
        self.dim: int = dim
        self.dim_v: int = dim_v or dim
        self.sequences: int = sequences
        self.capacity: int = capacity
        self.page: int = page

    def attend(self, q: Any, k_new: Any = None, v_new: Any = None, *, sequences: Sequence[int] | None = None,
               layout: Layout = "bshd", causal: bool = False, window: Window | None = None, scale: float | None = None,
               return_lse: bool = False, out: Any = None, lse: Any = None, stream: int | None = None,
               **options: Any) -> Any:
        """Appends k_new and v_new, if given, to the named sequences (None: 0, 1, ...), one per batch entry of q, and
        attends to all of their keys. A q without rows only appends. Otherwise like attune.attend; there is no gradient.
        """
        new: dict[str, Any] = {"k_new": k_new, "v_new": v_new} if k_new is not None or v_new is not None else {}
        r = request(layout, causal, window, "no", {**options, **new})  # type: ignore[typeddict-item]
        _check_gradient((q, *r.tensors))
        _check_backend(r)
        out, lse = _results(r, q, self.dim_v, return_lse, out, lse)
        if not r.max_q and 0 in (size for axis, size in zip(layout, shape_of("q", q)) if axis in "st"):
            r.max_q = 1  # a bound must not be 0
        try:
            _core.cache_attend(self._handle, sequences, r.spec.forward, *_arguments(r, scale),
                               stream_of(q) if stream is None else stream, q, None, None, *r.tensors, out, lse)
        except _REFUSALS as error:
            _check_sequences(sequences, self.sequences)
            if not isinstance(error, _core.Error):
                check_numbers(r, scale)
            raise
        return (out, lse) if return_lse else out

    def append(self, k_new: Any, v_new: Any, *, sequences: Sequence[int] | None = None, layout: Layout = "bshd",
               **options: Any) -> None:
        """attend without queries: appends the new keys to the sequences. Rotary tables rotate them, as in attend."""
        shape = [0 if letter == "s" else size for letter, size in zip(layout, shape_of("k_new", k_new))]
        self.attend(empty(k_new, tuple(shape)), k_new, v_new, sequences=sequences, layout=layout, **options)

    def length(self, sequence: int) -> int:
        """The number of keys of the sequence."""
        return _core.cache_length(self._handle, _within("sequence", sequence, self.sequences - 1))

    def resize(self, sequence: int, length: int) -> None:
        """Shorter: drops the last keys, or all with 0, and frees pages that no sequence holds. Longer: the caller
        writes the new rows into k and v."""
        _core.cache_resize(self._handle, _within("sequence", sequence, self.sequences - 1),
                           _within("length", length, self.capacity))

    def fork(self, source: int, to: int, length: int | None = None, *, stream: int | None = None) -> None:
        """The empty sequence `to` begins with the first `length` keys of `source` (None: all). Both share pages; one
        that writes to a page of the other gets its own copy of it. Without pages the keys are copied, in the order of
        `stream` (None: the default one).
        """
        most = self.sequences - 1
        keys = self.length(source) if length is None else _within("length", length, self.capacity)
        _core.cache_fork(self._handle, _within("sequence", source, most), _within("sequence", to, most), keys,
                         0 if stream is None else stream)

    @property
    def free_pages(self) -> int:
        """The number of pages that no sequence uses."""
        return _core.cache_free_pages(self._handle)

    @property
    def k(self) -> View:
        """The keys, for from_dlpack."""
        return View(functools.partial(_core.cache_view, self._handle, 1))

    @property
    def v(self) -> View:
        """The values, for from_dlpack."""
        return View(functools.partial(_core.cache_view, self._handle, 2))


class NsaCache:
    """A cache of native sparse attention: raw keys and values of its three branches and the compressed ones, for up to
    `sequences` sequences of up to `capacity` tokens. Prefill, chunks and single tokens select the same blocks.

        cache = attune.NsaCache("nsa d=16 gate=sigmoid l=32 n=16 phi=mean s=64 w=512", heads=4, dim=192, dim_v=128,
                                sequences=8, capacity=65536, dtype="bfloat16", device="cuda:0")
        out = cache.attend(q, k, v, k_select, v_select, k_window, v_window, gates=gates, sequences=[5])

    Use it from one thread at a time, with all calls on one stream or ordered as if they were. See docs/nsa.md.
    """

    def __init__(self, variant: str, *, heads: int, dim: int, sequences: int, capacity: int, dtype: Any = "float32",
                 device: Any = "cpu", dim_v: int = 0) -> None:
        for what, size in (("heads", heads), ("dim", dim), ("dim_v", dim_v), ("sequences", sequences),
                           ("capacity", capacity)):
            check_whole(what, size)
        self._handle = _core.nsa_cache_create(dtype_number(dtype), heads, dim, dim_v, sequences, capacity, variant,
                                              str(device))
        self.variant: str = variant
        self.heads: int = heads
        self.dim: int = dim
        self.dim_v: int = dim_v or dim
        self.sequences: int = sequences
        self.capacity: int = capacity

    def attend(self, q: Any, k: Any = None, v: Any = None, k_select: Any = None, v_select: Any = None,
               k_window: Any = None, v_window: Any = None, *, gates: Any = None, weights: dict[int, Any] | None = None,
               sequences: Sequence[int] | None = None, layout: Layout = "bshd", scale: float | None = None,
               out: Any = None, stream: int | None = None, **options: Any) -> Any:
        """Appends the new tokens, if given, compresses completed blocks, and attends. The queries are the last tokens
        of the named sequences (None: 0, 1, ...). q=None only appends. weights holds those of phi by number (5 ... 14),
        gates the logits. There is no gradient."""
        for n in weights or ():
            if n not in _NSA_WEIGHTS:
                raise _core.Error(f"attune: weights {n!r} is not a number of phi's, 5 ... 14")
        variant = {0: k_select, 1: v_select, 2: k_window, 3: v_window, 4: gates, **(weights or {})}
        named: dict[str, Any] = {**options, "variant": self.variant, "variant_tensors": variant}
        if k is not None or v is not None:
            named.update(k_new=k, v_new=v)
        r = request(layout, True, None, "no", named)  # type: ignore[arg-type]
        like = k if q is None else q
        if like is None:
            raise _core.Error("attune: neither q nor new tokens are given")
        _check_gradient((like, *r.tensors))
        _check_backend(r)
        if q is not None:
            out, _ = _results(r, q, self.dim_v, False, out, None)
        try:
            _core.nsa_cache_attend(self._handle, sequences, r.spec.forward, *_arguments(r, scale),
                                   stream_of(like) if stream is None else stream, q, None, None, *r.tensors, out, None,
                                   *(None,) * len(r.spec.saved))
        except _REFUSALS:
            _check_sequences(sequences, self.sequences)
            raise
        return out

    def length(self, sequence: int) -> int:
        """The number of raw tokens of the sequence."""
        return _core.nsa_cache_length(self._handle, _within("sequence", sequence, self.sequences - 1))

    def compressed(self, sequence: int) -> int:
        """The number of compressed tokens of the sequence."""
        return _core.nsa_cache_compressed(self._handle, _within("sequence", sequence, self.sequences - 1))

    def shorten(self, sequence: int, length: int) -> None:
        """Drops the last tokens, or all with 0."""
        _core.nsa_cache_shorten(self._handle, _within("sequence", sequence, self.sequences - 1),
                                _within("length", length, self.capacity))

    def stream(self, name: str) -> View:
        """One of k, v, k_select, v_select, k_window, v_window, k_compressed, v_compressed, for from_dlpack: [sequence,
        token, head, dim]."""
        if name not in _NSA_STREAMS:
            raise _core.Error(f"attune: stream {name!r} is not one of {', '.join(_NSA_STREAMS)}")
        return View(functools.partial(_core.nsa_cache_view, self._handle, _NSA_STREAMS.index(name)))
