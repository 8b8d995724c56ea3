# SPDX-License-Identifier: Apache-2.0
"""The options of a call without its tensors: hashable, convertible to text for compilers, and converted to the
library's own form once.

Every option of attention is a keyword here, under the name of its role or field in the C header."""

from __future__ import annotations

import dataclasses
import json
from operator import index
from typing import Any, Callable, Literal, TypedDict, TypeVar

from . import _core

Layout = Literal["bshd", "bhsd", "thd"]
Window = tuple[int, int]  # keys to the left and right that a query sees; -1: all

NO_LIMIT = 2**31 - 1
_ALIGN = {"bottom_right": 0, "top_left": 1, "absolute": 2}
_REPRODUCIBLE = {"no": 0, "run": 1, "batch": 2}
WARN = "warn"  # "run" if a backend supports it, else "no" with a warning; internal to attune.torch
_PRECISION = {"full": 0, "tf32": 1, "tf32x3": 2}
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_OPTION = {name: 1 << bit for bit, name in enumerate(
    ("softcap", "alibi", "bias", "dropout", "sink", "accumulate", "append", "rotary", "rotary_half", "descale"))}

# Tensors that a call may have besides q, k and v, in the order in which they are passed, with their axes. "kv": the
# axes of k and v in the call's layout.
TENSORS: dict[str, str] = {
    "cu_q": "n", "cu_k": "n", "used_q": "b", "used_k": "b", "left_pad": "b", "cache_index": "b", "page_table": "bn",
    "positions": "bn", "block_begin": "bhn", "block_column": "n", "block_begin_k": "bhn", "block_row_k": "n",
    "slopes": "h", "sinks": "h", "bias": "bhqk", "seed": "n", "k_new": "kv", "v_new": "kv", "rotary_cos": "sd",
    "rotary_sin": "sd", "descale_q": "bh", "descale_k": "bh", "descale_v": "bh"}
VARIANT_TENSORS = 24
_BACKWARD_HAS_NO = ("k_new", "v_new", "rotary_cos", "rotary_sin", "descale_q", "descale_k", "descale_v")


_SAVED = {"nsa": (15, 16, 17), "adaptive": (10, 11, 12)}


class Options(TypedDict, total=False):
    """The less common options of attention. docs/python.md says more.

    align: where the mask begins: "bottom_right" (default), "top_left", or "absolute" with positions
    softcap: c, for scores c tanh(score / c); applied before slopes and bias
    slopes: ALiBi, [head] f32: -slope |i - j| is added, with i and j counted from the last query and the last key, or
        as align says: from the first, or from positions
    bias: added to the scores, [batch, head, q, k], any axis may be 1; -inf hides a key. Behind left_pad, column 0 is
        the first key that is not padding; so are the keys of align and slopes
    sinks: a logit per head, [head] f32, that takes weight and has no value
    dropout, seed: the share that is dropped; two i64, seed and offset
    cu_q, cu_k: where packed sequences begin, i32 [batch + 1]; max_q, max_k: bounds of their lengths
    used_q, used_k, left_pad: rows in use and rows hidden at the beginning, i32 [batch]
    page_table, cache_index: pages of keys, i32 [batch, page]; which sequences of a cache these are
    k_new, v_new, rotary_cos, rotary_sin, rotary_interleaved: written to the cache before the call; rotary tables
    positions: of query 0 and key 0, i64 [batch, 2]
    block_size, block_begin, block_column, block_begin_k, block_row_k: lists of attune.blocks
    variant, variant_tensors: "nsa ...", "dilated ...", "adaptive ...", and their tensors by number
    descale_q, descale_k, descale_v: for e4m3, [batch, KV head] f32
    reproducible: "no", "run" or "batch"; precision: "full", "tf32" or "tf32x3"; backend: its name"""

    align: Literal["bottom_right", "top_left", "absolute"]
    softcap: float
    dropout: float
    max_q: int
    max_k: int
    rotary_interleaved: bool
    reproducible: Literal["no", "run", "batch"]
    precision: Literal["full", "tf32", "tf32x3"]
    backend: str
    variant: str
    variant_tensors: dict[int, Any]
    block_size: tuple[int, int]
    cu_q: Any
    cu_k: Any
    used_q: Any
    used_k: Any
    left_pad: Any
    cache_index: Any
    page_table: Any
    positions: Any
    block_begin: Any
    block_column: Any
    block_begin_k: Any
    block_row_k: Any
    slopes: Any
    sinks: Any
    bias: Any
    seed: Any
    k_new: Any
    v_new: Any
    rotary_cos: Any
    rotary_sin: Any
    descale_q: Any
    descale_k: Any
    descale_v: Any


_Function = TypeVar("_Function", bound=Callable[..., Any])


def with_options(function: _Function) -> _Function:
    """Adds the options to a function's help."""
    function.__doc__ = f"{function.__doc__}\n\n    {Options.__doc__}"
    return function


class _Lazy:
    """functools.cached_property without its lock, which slows down calls and breaks torch.compile on Python 3.11."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self.make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, spec: Any, owner: type) -> Any:
        value = spec.__dict__[self.name] = self.make(spec)
        return value


@dataclasses.dataclass(frozen=True)
class Spec:
    layout: str = "bshd"
    causal: bool = False
    window: Window | None = None
    align: str = "bottom_right"
    softcap: bool = False
    dropout: bool = False
    rotary_interleaved: bool = True
    reproducible: str = "no"
    precision: str = "full"
    backend: str = ""
    variant: str = ""
    block_size: Window = (0, 0)
    given: tuple[str, ...] = ()  # names of tensors besides q, k and v, in order

    def __post_init__(self) -> None:
        for what, value, known in (("layout", self.layout, ("bshd", "bhsd", "thd")), ("align", self.align, _ALIGN),
                                   ("reproducible", "run" if self.reproducible == WARN else self.reproducible,
                                    _REPRODUCIBLE),
                                   ("precision", self.precision, _PRECISION)):
            if not isinstance(value, str) or value not in known:
                raise _core.Error(f"attune: {what} {value!r} is not one of {', '.join(known)}")
        for what, flag in (("causal", self.causal), ("rotary_interleaved", self.rotary_interleaved)):
            if not _is_flag(flag):
                raise _core.Error(f"attune: {what} {flag!r} is not True or False")
        for what, value in (("backend", self.backend), ("variant", self.variant)):
            if not isinstance(value, str):
                raise _core.Error(f"attune: {what} {value!r} is not a string")
        for what, pair, least in (("window", self.window, -1), ("block_size", self.block_size, 0)):
            if pair is None and what == "window":
                continue
            if type(pair) is not tuple or len(pair) != 2 or not all(isinstance(n, int) and n >= least for n in pair):
                raise _core.Error(f"attune: {what} {pair!r} is not a pair of integers of {least} and more")
            if max(pair) > MOST_WHOLE:
                raise _core.Error(f"attune: {what} {pair!r} is not a pair of integers of {least} ... {MOST_WHOLE}")
        if self.layout == "thd" and "cu_q" not in self.given:
            raise _core.Error("attune: layout 'thd' needs cu_q, where the sequences begin")
        if self.layout != "thd" and "cu_q" in self.given:
            raise _core.Error(f"attune: cu_q goes with layout 'thd', not {self.layout!r}")
        for name in ("text", "append", "has_lse", "is_simple"):  # precomputed, because compilers read them
            getattr(self, name)

    @_Lazy
    def text(self) -> str:
        """The spec as text, for a compiler's graph; from_text is the inverse."""
        return json.dumps({f.name: value for f in dataclasses.fields(self)
                           if (value := getattr(self, f.name)) != f.default}, default=bool)  # numpy.bool_

    @_Lazy
    def lse_axes(self) -> str:
        return "ht" if self.layout == "thd" else "bhs"

    @_Lazy
    def kv_axes(self) -> str:
        if "page_table" in self.given:
            return "phsd" if self.layout == "bhsd" else "pshd"
        if self.layout == "thd" and "cu_k" not in self.given:
            return "bshd"  # packed queries, keys in a cache
        return self.layout

    def axes(self, name: str) -> str:
        if name.startswith("variant"):
            return self.layout if self.is_stream(name) else "bshd"
        axes = TENSORS[name]
        if axes != "kv":
            return axes
        return "bhsd" if self.layout == "bhsd" else "bshd"  # new keys of a cache are never packed

    def is_stream(self, name: str) -> bool:
        """Whether the tensor holds keys or values of a separate branch."""
        return self.variant.startswith("nsa") and name in ("variant0", "variant1", "variant2", "variant3")

    @_Lazy
    def append(self) -> bool:
        return "k_new" in self.given

    def _fields(self) -> dict[str, int]:
        left, right = (-1, -1) if self.window is None else self.window
        options = {"softcap": self.softcap, "dropout": self.dropout, "alibi": "slopes" in self.given,
                   "bias": "bias" in self.given, "sink": "sinks" in self.given, "append": self.append,
                   "rotary" if self.rotary_interleaved else "rotary_half": "rotary_cos" in self.given,
                   "descale": "descale_q" in self.given}
        if self.causal:
            right = 0
        window = left >= 0 or (right >= 0 and not self.causal)
        return {"mask": 2 if window else 1 if self.causal else 0, "align": _ALIGN[self.align],
                "left": (left if left >= 0 else NO_LIMIT) if window else 0,
                "right": (right if right >= 0 else NO_LIMIT) if window else 0,
                "block_q": self.block_size[0], "block_k": self.block_size[1],
                "options": sum(_OPTION[name] for name, on in options.items() if on),
                "repro": _REPRODUCIBLE["run" if self.reproducible == WARN else self.reproducible],
                "precision": _PRECISION[self.precision]}

    def _handle(self, is_backward: bool, given: tuple[str, ...], extra: tuple[tuple[str, str], ...]) -> object:
        places = [("q", self.layout), ("k", self.kv_axes), ("v", self.kv_axes)]
        places += [(name, self.axes(name)) for name in given]
        places += [("out", self.layout), ("lse", self.lse_axes), *extra]
        return _core.spec({**self._fields(), "pass": int(is_backward)}, self.variant, self.backend, tuple(places))

    @_Lazy
    def forward(self) -> object:
        """The forward's handle. Its tensors: q, k, v, those given, out, lse, and those that the variant saves."""
        return self._handle(False, self.given, tuple((f"variant{n}", "bshd") for n in self.saved))

    @_Lazy
    def backward(self) -> object:
        """The backward's handle. Its tensors: those of the forward, d_out, d_lse, dq, dk, dv, d_bias, d_sinks and
        gradients of variant tensors."""
        if refused := [name for name in self.given if name in _BACKWARD_HAS_NO]:
            raise _core.Error(f"attune: a backward does not go with {', '.join(refused)}")
        extra = [(f"variant{n}", "bshd") for n in self.saved]
        extra += [("d_out", self.layout), ("d_lse", self.lse_axes), ("dq", self.layout), ("dk", self.kv_axes),
                  ("dv", self.kv_axes), ("d_bias", TENSORS["bias"]), ("d_sinks", TENSORS["sinks"])]
        extra += [("d_" + name, self.axes(name)) for name in self.variant_given]
        return self._handle(True, self.given, tuple(extra))

    @_Lazy
    def in_any_order(self) -> Spec:
        """The same spec without reproducibility."""
        return dataclasses.replace(self, reproducible="no")

    @_Lazy
    def is_simple(self) -> bool:
        """Only q, k and v, without a variant."""
        return not self.given and not self.variant

    @_Lazy
    def leaves_rows(self) -> bool:
        """Whether rows of q may be in no sequence; their out, lse and dq are not written."""
        return "cu_q" in self.given or "used_q" in self.given

    def is_nothing(self, q: Any, k: Any, v: Any) -> bool:
        """Whether there is no query or no key, in tensors with matching shapes: out is 0, lse -inf and every gradient
        0. The library does not support such problems, so its other checks are done here and in _empty.check."""
        dtype, *others = (str(getattr(t, "dtype", "")).rsplit(".", 1)[-1] for t in (q, k, v))
        if dtype not in _FLOATS or others != [dtype, dtype]:
            return False
        q, k, v = (tuple(getattr(t, "shape", ())) for t in (q, k, v))
        if len(q) != len(self.layout) or len(k) != len(self.kv_axes) or len(v) != len(k) or self.variant or self.append:
            return False
        of_q, of_k = dict(zip(self.layout, q)), dict(zip(self.kv_axes, k))
        if "b" in of_q and "b" in of_k and "cache_index" not in self.given and of_q["b"] != of_k["b"]:
            return False
        if k[:-1] != v[:-1] or of_q["d"] != of_k["d"] or not (of_q["d"] and v[-1] and of_q["h"] and of_k["h"]):
            return False
        no_keys = 0 in k and "sinks" not in self.given
        return of_q["h"] % of_k["h"] == 0 and (0 in q or no_keys)

    @_Lazy
    def has_lse(self) -> bool:
        """False if the output is a sum of branches with separate softmaxes."""
        return bool(self.saved != _SAVED["nsa"])

    @_Lazy
    def variant_given(self) -> tuple[str, ...]:
        return tuple(name for name in self.given if name.startswith("variant"))

    @_Lazy
    def saved(self) -> tuple[int, ...]:
        """Numbers of the tensors that a forward of the variant saves for its backward."""
        word, _, parameters = self.variant.partition(" ")
        return () if "only=" in parameters else _SAVED.get(word, ())


_MOST = 4096  # cached specs; a program uses a few
_specs: dict[Any, Spec] = {}


def spec(layout: str, causal: bool, window: Window | None, reproducible: str, align: str = "bottom_right") -> Spec:
    """The spec of a call with only q, k and v."""
    if isinstance(window, list):  # for callers who ignore the type hint
        window = tuple(window)
    key = (layout, causal, window, reproducible, align)
    return _found(key) or _keep(key, Spec(layout=layout, causal=causal, window=window, reproducible=reproducible,
                                          align=align))


def spec_of(**fields: Any) -> Spec:
    key = tuple((name, tuple(f) if type(f) is list else f) for name, f in fields.items())
    fields = dict(key)
    return _found(key) or _keep(key, Spec(**fields))


def from_text(text: str) -> Spec:
    found = _specs.get(text)
    if found is None:
        fields: dict[str, Any] = json.loads(text)
        lists: dict[str, Any] = {name: tuple(f) for name, f in fields.items() if isinstance(f, list)}
        found = _keep(text, Spec(**{**fields, **lists}))
    return found


def _is_flag(value: Any) -> bool:
    if not isinstance(value, (bool, int)) and type(value).__module__ != "numpy":  # not a tensor, which json cannot hold
        return False
    try:
        return value in (False, True)  # includes numpy.bool_
    except (TypeError, ValueError):  # an array has no truth value
        return False


def _found(key: Any) -> Spec | None:
    try:
        return _specs.get(key)
    except TypeError:  # an unhashable field: Spec reports which one
        return None


def _keep(key: Any, made: Spec) -> Spec:
    if len(_specs) >= _MOST:
        _specs.clear()
    _specs[key] = made
    return made


# torch.compile treats the results as constants: torch.compiler.assume_constant_result, without importing torch.
for _function in (spec, spec_of):
    setattr(_function, "_dynamo_marked_constant", True)


@dataclasses.dataclass
class Request:
    """A call with Options: its Spec, its tensors besides q, k and v, and its numbers."""

    spec: Spec
    tensors: list[Any]
    softcap: float = 0.0
    dropout: float = 0.0
    max_q: int = 0
    max_k: int = 0


# The library holds the scale in f32. Smaller values round to 0, which means 1/sqrt(dim); larger ones make infinities of
# ordinary scores.
_LEAST_SCALE, _GREATEST_SCALE = 2.0**-149, 1e30


def is_scale(scale: float) -> bool:
    """Whether kernels can use this scale. Two comparisons, because compilers trace this."""
    return _LEAST_SCALE <= scale <= _GREATEST_SCALE


def scale_of(scale: float | None) -> float:
    """The scale as the library expects it: 0 is 1/sqrt(dim)."""
    if scale is None:
        return 0.0
    if not is_scale(scale):
        raise _core.Error(f"attune: scale {scale} is not a number that kernels can use, 2^-149 ... 1e30 "
                          "(None: 1/sqrt(dim))")
    return scale


MOST_WHOLE = 2**31 - 1


def check_whole(what: str, value: Any) -> None:
    """Refuses what the library cannot take as a size."""
    try:
        good = 0 <= index(value) <= MOST_WHOLE
    except TypeError:
        good = False
    if not good:
        raise _core.Error(f"attune: {what} {value!r} is not a whole number of 0 ... {MOST_WHOLE}")


def check_numbers(r: Request, scale: Any) -> None:
    """Called only after Python refused a number of the call, to name it."""
    for what, value in (("scale", scale or 0.0), ("softcap", r.softcap), ("dropout", r.dropout)):
        try:
            if isinstance(value, (str, bytes)):
                raise TypeError
            float(value)
        except (TypeError, ValueError, OverflowError):
            raise _core.Error(f"attune: {what} {str(value)[:40]!r} is not a number that kernels can use") from None
    check_whole("max_q", r.max_q)
    check_whole("max_k", r.max_k)


_FLAGS = frozenset(("align", "rotary_interleaved", "reproducible", "precision", "backend", "variant", "block_size"))
_NUMBERS = frozenset(("softcap", "dropout", "max_q", "max_k"))


def request(layout: str, causal: bool, window: Window | None, reproducible: str, options: Options) -> Request:
    fields: dict[str, Any] = {"reproducible": reproducible}
    numbers: dict[str, Any] = {}
    for name, value in options.items():
        if name in _FLAGS:
            fields[name] = value
        elif name in _NUMBERS:
            numbers[name] = 0 if value is None else value
        elif name not in TENSORS and name != "variant_tensors":
            raise TypeError(f"attend() got an unexpected keyword argument {name!r}")
    given = [name for name in TENSORS if options.get(name) is not None]
    tensors = [options[name] for name in given]  # type: ignore[literal-required]
    numbered = options.get("variant_tensors") or {}
    if not isinstance(numbered, dict):
        raise _core.Error(f"attune: variant_tensors: {type(numbered)} is not a dict, which has them by their numbers")
    for n in sorted(numbered):  # not items(): compilers before PyTorch 2.10 can only sort numbers
        if numbered[n] is not None:
            given.append(f"variant{n}")
            tensors.append(numbered[n])
    for name in ("softcap", "dropout"):
        fields[name] = numbers.get(name, 0) != 0
    if options.get("reproducible") == WARN:
        raise _core.Error("attune: reproducible 'warn' is not one of no, run, batch")
    if fields["dropout"] and "seed" not in given:
        raise _core.Error("attune: dropout needs seed, two i64: seed and offset")
    made = spec_of(layout=layout, causal=causal, window=window, given=tuple(given), **fields)
    return Request(made, tensors, **numbers)
