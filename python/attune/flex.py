# SPDX-License-Identifier: Apache-2.0
"""flex_attention with the arguments of PyTorch's FlexAttention, by formulas and without a compiler.

A score_mod and a mask_mod are called once with stand-ins for their arguments. What they do with them (operators,
indices of captured tensors, torch.where, tanh, ...) becomes a formula. What cannot become one is a sentence."""

from __future__ import annotations

import math
import numbers
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from . import _core
from .torch import attend

__all__ = ["flex_attention", "trace"]

_MOST_TEXT, _MOST_ARRAYS = 151, 8
_MOST_TRACED = 4096  # characters of a part: x = x * x doubles them every time
_MOST_WHOLE = 2**53  # f64 has all whole numbers up to it
_DTYPES = (torch.float64, torch.float32, torch.int64, torch.int32)  # conversions that change no number of a formula
_CHOICE, _EITHER, _BOTH, _COMPARISON, _SUM, _PRODUCT, _UNARY, _PRIMARY = range(8)


def _no(why: str) -> _core.Error:
    return _core.Error(f"attune.flex: {why}")


class Value:
    """A part of a formula: text, how tightly it binds, whether it is a truth, whether a whole number, and bounds."""

    def __init__(self, text: str, binding: int = _PRIMARY, truth: bool = False, whole: bool = False,
                 low: float = -math.inf, high: float = math.inf) -> None:
        if len(text) > _MOST_TRACED:
            raise _no(f"a part of the formula has {len(text)} characters; at most {_MOST_TEXT} are accepted:"
                      f" {text[:60]}...")
        self.text, self.binding, self.truth = text, binding, truth
        self.whole, self.low, self.high = whole, low, high

    def inside(self, least: int) -> str:
        return self.text if self.binding >= least else f"({self.text})"

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _function(function, args, kwargs or {})

    def __bool__(self) -> bool:
        raise _no("a function decides by 'if', 'and', 'or' or 'not' on a traced value; accepted are torch.where, &, | "
                  "and ~")

    def __index__(self) -> int:
        raise _no("a function uses a traced value as a Python integer; accepted are indices of tensors")

    __int__ = __float__ = __index__
    __array_ufunc__ = None  # a NumPy number on the left leaves the operator to this class

    def _refused(self, *_: Any) -> Value:
        raise _no("a function uses a traced value as a list, or in round(), divmod(), <<, >>, @ or 2 ** x; accepted "
                  "are + - * / // %, comparisons, &, | and ~")

    __iter__ = __len__ = __contains__ = __round__ = __trunc__ = __divmod__ = __rdivmod__ = _refused
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __matmul__ = __rmatmul__ = __rpow__ = _refused

    def __add__(self, other: Any) -> Value: return _two(self, "+", other, _SUM)
    def __radd__(self, other: Any) -> Value: return _two(other, "+", self, _SUM)
    def __sub__(self, other: Any) -> Value: return _two(self, "-", other, _SUM)
    def __rsub__(self, other: Any) -> Value: return _two(other, "-", self, _SUM)
    def __mul__(self, other: Any) -> Value: return _two(self, "*", other, _PRODUCT)
    def __rmul__(self, other: Any) -> Value: return _two(other, "*", self, _PRODUCT)
    def __truediv__(self, other: Any) -> Value: return _two(self, "/", other, _PRODUCT)
    def __rtruediv__(self, other: Any) -> Value: return _two(other, "/", self, _PRODUCT)
    def __floordiv__(self, other: Any) -> Value: return _two(self, "//", other, _PRODUCT)
    def __rfloordiv__(self, other: Any) -> Value: return _two(other, "//", self, _PRODUCT)
    def __mod__(self, other: Any) -> Value: return _two(self, "%", other, _PRODUCT)
    def __rmod__(self, other: Any) -> Value: return _two(other, "%", self, _PRODUCT)
    def __lt__(self, other: Any) -> Value: return _compare(self, "<", other)
    def __le__(self, other: Any) -> Value: return _compare(self, "<=", other)
    def __gt__(self, other: Any) -> Value: return _compare(self, ">", other)
    def __ge__(self, other: Any) -> Value: return _compare(self, ">=", other)
    def __eq__(self, other: object) -> Value: return _compare(self, "==", other)  # type: ignore[override]
    def __ne__(self, other: object) -> Value: return _compare(self, "!=", other)  # type: ignore[override]
    def __and__(self, other: Any) -> Value: return _bitwise(self, "&", other)
    def __or__(self, other: Any) -> Value: return _bitwise(self, "|", other)
    def __xor__(self, other: Any) -> Value: return _bitwise(self, "^", other)
    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__
    def __invert__(self) -> Value: return _bitwise_not(self)
    def __abs__(self) -> Value: return _absolute(self)

    def __neg__(self) -> Value: return _negative(self)

    def __pow__(self, power: Any) -> Value:
        if power == 2:
            return _number(self) * _number(self)
        if power == 0.5:
            return _call("sqrt", self)
        raise _no(f"a power of {power} is not a formula; accepted are 2 and 0.5")

    def to(self, *given: Any, **named: Any) -> Value:
        """The same number; toward zero for an integer dtype, a truth for bool. All numbers of a formula are f64."""
        like = [x.dtype if isinstance(x, torch.Tensor) else x for x in (*given, *named.values())]
        dtype = next((x for x in like if isinstance(x, (torch.dtype, Value))), torch.float64)
        if isinstance(dtype, Value):
            raise _no("a traced value is converted to the dtype of another; accepted are dtypes")
        if dtype == torch.bool:
            return _truth(self)
        if dtype not in _DTYPES:
            raise _no(f"a traced value is converted to {dtype}, which rounds it; accepted are "
                      f"{', '.join(map(str, _DTYPES))} and torch.bool")
        return _number(self) if dtype.is_floating_point else _toward_zero(self)

    def __getattr__(self, name: str) -> Any:
        function = _FUNCTIONS.get(name)
        if function is None:
            raise _no(f"'{name}' of a traced value is not a formula; accepted are {', '.join(sorted(_FUNCTIONS))}")
        if name == "where":
            return lambda condition, other: _where(condition, self, other)
        return lambda *others, **named: _called(name, (self, *others), named)

    __hash__ = None  # type: ignore[assignment]


class Array(Value):
    """A captured tensor with some of its indices; it is a value when it has them all."""

    def __init__(self, tensor: Any, name: str, indices: tuple[str, ...]) -> None:
        text = f"{name}[{','.join(indices)}]"
        is_bool = tensor.dtype == torch.bool
        super().__init__(text + "!=0" if is_bool else text, _COMPARISON if is_bool else _PRIMARY, is_bool,
                         not tensor.is_floating_point())
        self.tensor, self.name, self.indices = tensor, name, indices

    def __getitem__(self, index: Any) -> Array:
        more = index if isinstance(index, tuple) else (index,)
        if len(self.indices) + len(more) > self.tensor.dim():
            raise _no(f"a captured tensor of {self.tensor.dim()} axes has {len(self.indices) + len(more)} indices")
        extents = self.tensor.shape[len(self.indices):]
        return Array(self.tensor, self.name, (*self.indices, *map(_index, more, extents)))

    def whole_value(self) -> Value:
        if len(self.indices) != self.tensor.dim():
            raise _no(f"a captured tensor of {self.tensor.dim()} axes has {len(self.indices)} indices; all are needed")
        return Value(self.text, self.binding, self.truth, self.whole)


def _index(x: Any, extent: int) -> str:
    """The text of an index. A negative one counts from the end, as in PyTorch. A formula would clamp one that is known
    to lie outside."""
    x = _value(x)
    if x.truth or not x.whole:
        raise _no(f"'{x.text}' is an index and is not a whole number; accepted are whole numbers")
    reaches = x.text in ("b", "h", "q", "k") and extent <= x.high < math.inf
    if x.low >= extent or x.high < -extent or reaches:
        numbers_of_it = f"{x.low}" if x.low == x.high else f"{x.low} ... {x.high}"
        raise _no(f"the index '{x.text}' is {numbers_of_it}, and the axis of the captured tensor has {extent} elements")
    if x.low >= 0:
        return x.text
    from_end = f"{x.inside(_SUM)}+{extent}"
    return f"{x.inside(_SUM)}<0?{from_end}:{x.text}" if x.high >= 0 else from_end


def _value(x: Any) -> Value:
    if isinstance(x, Array):
        return x.whole_value()
    if isinstance(x, Value):
        return x
    if isinstance(x, torch.Tensor) and x.dim() == 0:
        if x.requires_grad or x.device.type != "cpu":  # a gradient, and no wait for the device
            return _running.tracing.scalar(x)
        x = x.item()
    if isinstance(x, bool):
        return Value("0==0" if x else "0!=0", _COMPARISON, True)
    if isinstance(x, numbers.Real):  # of Python or NumPy
        return _constant(int(x) if isinstance(x, numbers.Integral) else float(x))
    if isinstance(x, torch.Tensor):
        raise _no(f"a captured tensor of {x.dim()} axes is used without indices")
    raise _no(f"{type(x).__name__} is not a formula; accepted are numbers, tensors with indices and the arguments")


def _constant(x: int | float) -> Value:
    if isinstance(x, int) and (abs(x) >= 2**1023 or int(float(x)) != x):
        raise _no(f"a constant is the whole number {str(x)[:30]}, which f64 does not have")
    if math.isnan(x):
        raise _no("a constant is NaN; accepted are numbers and infinity")
    text, negative = repr(abs(x)).replace("+", ""), str(x).startswith("-")
    return Value("-" + text if negative else text, _UNARY if negative else _PRIMARY, False, isinstance(x, int), x, x)


def _number(x: Any) -> Value:
    x = _value(x)
    return Value(f"{x.inside(_EITHER)}?1:0", _CHOICE, False, True, 0, 1) if x.truth else x


def _truth(x: Any) -> Value:
    x = _value(x)
    return x if x.truth else Value(f"{x.inside(_SUM)}!=0", _COMPARISON, True)


def _toward_zero(x: Any) -> Value:
    x = _number(x)
    if x.whole:
        return x
    if x.low >= 0:
        return Value(f"floor({x.text})", _PRIMARY, False, True, 0, x.high)
    return Value(f"{x.inside(_SUM)}<0?-floor(-{x.inside(_UNARY)}):floor({x.text})", _CHOICE, False, True, x.low, x.high)


def _bounds(a: Value, symbol: str, b: Value) -> tuple[float, float]:
    """Bounds of a sum, a product or a remainder; infinite ones where they are not known."""
    ends = [(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    if symbol == "%" and b.low > 0:
        return 0, b.high
    if symbol == "//" and b.low > 0 and a.low >= 0:
        return 0, a.high / b.low
    if symbol not in "+-*" or any(math.isinf(x) and symbol == "*" for pair in ends for x in pair):
        return (0, math.inf) if symbol in "*/" and a.low >= 0 and b.low >= 0 else (-math.inf, math.inf)
    if symbol == "*":
        return min(x * y for x, y in ends), max(x * y for x, y in ends)
    return (a.low + b.low, a.high + b.high) if symbol == "+" else (a.low - b.high, a.high - b.low)


def _two(a: Any, symbol: str, b: Any, binding: int) -> Value:
    a, b = _value(a), _value(b)
    if a.truth and b.truth and symbol != "/":  # in PyTorch a sum of two truths is a truth, and so is a product
        if symbol not in "+*":
            raise _no(f"'{symbol}' of two truths; accepted are &, | and ~, and numbers such as x.int()")
        return _logical(a, "&&", b, _BOTH) if symbol == "*" else _logical(a, "||", b, _EITHER)
    a, b = _number(a), _number(b)
    # PyTorch takes the remainder first: 1 // 0.1 is 9, and floor(1 / 0.1) is 10.
    exact = (a.whole and b.whole) or (b.low == b.high and math.frexp(b.low)[0] in (0.5, -0.5))
    if symbol in ("//", "%") and not exact:
        raise _no(f"'{symbol}' of '{a.text}' and '{b.text}', which rounds; accepted are whole numbers, powers of two "
                  "on the right, and torch.floor(a / b)")
    return Value(a.inside(binding) + symbol + b.inside(binding + 1), binding, False,
                 a.whole and b.whole and symbol != "/", *_bounds(a, symbol, b))


def _as_element(x: Any, of: Any) -> Any:
    """A number of Python next to an element of a captured tensor: PyTorch rounds it to the tensor's dtype."""
    is_number = isinstance(x, numbers.Real) and not isinstance(x, bool)
    if not is_number or not isinstance(of, Array) or not of.tensor.is_floating_point():
        return x
    return torch.tensor(float(x), dtype=of.tensor.dtype).item()


def _compare(a: Any, symbol: str, b: Any) -> Value:
    a, b = _as_element(a, b), _as_element(b, a)
    return Value(_number(a).inside(_SUM) + symbol + _number(b).inside(_SUM), _COMPARISON, True)


def _logical(a: Any, symbol: str, b: Any, binding: int) -> Value:
    return Value(_truth(a).inside(binding) + symbol + _truth(b).inside(binding + 1), binding, True)


def _bitwise(a: Any, symbol: str, b: Any) -> Value:
    a, b = _value(a), _value(b)
    if not (a.truth and b.truth):
        raise _no(f"'{symbol}' of numbers works on their bits; accepted are truths, and // and % of whole numbers")
    if symbol == "^":
        return _compare(a, "!=", b)
    return _logical(a, "&&", b, _BOTH) if symbol == "&" else _logical(a, "||", b, _EITHER)


def _bitwise_not(x: Any) -> Value:
    x = _value(x)
    if not x.truth:
        raise _no("'~' of a number works on its bits; accepted are truths")
    return Value("!" + x.inside(_UNARY), _UNARY, True)


def _call(name: str, *values: Any) -> Value:
    return Value(f"{name}({','.join(_number(v).text for v in values)})")


def _negative(x: Any) -> Value:
    x = _value(x)
    if x.truth:
        raise _no("'-' of a truth; accepted are ~, and numbers such as x.int()")
    return Value("-" + x.inside(_UNARY), _UNARY, False, x.whole, -x.high, -x.low)


def _absolute(x: Any) -> Value:
    x = _number(x)
    return Value(f"abs({x.text})", _PRIMARY, False, x.whole, 0, max(-x.low, x.high))


def _floor(x: Any) -> Value:
    x = _number(x)
    return Value(f"floor({x.text})", _PRIMARY, False, True, x.low if x.low >= 0 else -math.inf, x.high)


def _least(a: Any, b: Any) -> Value:
    a, b = _number(a), _number(b)
    return Value(f"min({a.text},{b.text})", _PRIMARY, False, a.whole and b.whole, min(a.low, b.low),
                 min(a.high, b.high))


def _most(a: Any, b: Any) -> Value:
    a, b = _number(a), _number(b)
    return Value(f"max({a.text},{b.text})", _PRIMARY, False, a.whole and b.whole, max(a.low, b.low),
                 max(a.high, b.high))


def _where(condition: Any, yes: Any, no: Any) -> Value:
    a, b = _value(yes), _value(no)
    if not (a.truth and b.truth):
        a, b = _number(a), _number(b)
    return Value(f"{_truth(condition).inside(_EITHER)}?{a.text}:{b.text}", _CHOICE, a.truth, a.whole and b.whole,
                 min(a.low, b.low), max(a.high, b.high))


def _clamp(x: Any, min: Any = None, max: Any = None) -> Value:
    if min is not None:
        x = _most(x, min)
    return _value(x) if max is None else _least(x, max)


def _divide(a: Any, b: Any, rounding_mode: str | None = None) -> Value:
    if rounding_mode not in (None, "floor"):
        raise _no(f"rounding_mode={rounding_mode!r} is not a formula; accepted are None and 'floor'")
    return _two(a, "//" if rounding_mode else "/", b, _PRODUCT)


_FUNCTIONS: dict[str, Callable[..., Value]] = {
    "where": _where, "clamp": _clamp, "tanh": lambda x: _call("tanh", x), "exp": lambda x: _call("exp", x),
    "log": lambda x: _call("log", x), "sqrt": lambda x: _call("sqrt", x), "abs": _absolute,
    "floor": _floor, "minimum": _least,
    "maximum": _most, "square": lambda x: _number(x) * x,
    "add": lambda a, b: _two(a, "+", b, _SUM), "sub": lambda a, b: _two(a, "-", b, _SUM),
    "rsub": lambda a, b: _two(b, "-", a, _SUM), "mul": lambda a, b: _two(a, "*", b, _PRODUCT), "div": _divide,
    "true_divide": _divide, "floor_divide": lambda a, b: _two(a, "//", b, _PRODUCT),
    "remainder": lambda a, b: _two(a, "%", b, _PRODUCT), "neg": _negative,
    "lt": lambda a, b: _compare(a, "<", b), "le": lambda a, b: _compare(a, "<=", b),
    "gt": lambda a, b: _compare(a, ">", b), "ge": lambda a, b: _compare(a, ">=", b),
    "eq": lambda a, b: _compare(a, "==", b), "ne": lambda a, b: _compare(a, "!=", b),
    "logical_and": lambda a, b: _logical(a, "&&", b, _BOTH), "logical_or": lambda a, b: _logical(a, "||", b, _EITHER),
    "bitwise_and": lambda a, b: _bitwise(a, "&", b), "bitwise_or": lambda a, b: _bitwise(a, "|", b),
    "bitwise_xor": lambda a, b: _bitwise(a, "^", b), "logical_not": lambda x: ~_truth(x), "bitwise_not": _bitwise_not,
    "float": lambda x: _number(x), "double": lambda x: _number(x), "int": _toward_zero, "long": _toward_zero,
    "bool": _truth,
}
_SPELLINGS = {"__and__": "bitwise_and", "__or__": "bitwise_or", "__rand__": "bitwise_and", "__ror__": "bitwise_or",
              "__radd__": "add", "__rmul__": "mul", "__rsub__": "rsub", "__sub__": "sub", "__add__": "add",
              "__mul__": "mul", "__truediv__": "div", "__floordiv__": "floor_divide", "__mod__": "remainder",
              "__eq__": "eq", "__ne__": "ne", "__lt__": "lt", "__le__": "le", "__gt__": "gt", "__ge__": "ge",
              "__neg__": "neg", "__invert__": "bitwise_not", "__abs__": "abs"}


def _function(function: Any, args: Any, kwargs: dict[str, Any]) -> Value:
    """A function of PyTorch as a part of a formula."""
    name = getattr(function, "__name__", str(function))
    name = _SPELLINGS.get(name, name)
    if name not in _FUNCTIONS:
        raise _no(f"torch's '{name}' is not a formula; accepted are {', '.join(sorted(_FUNCTIONS))}")
    if function is torch.Tensor.where and len(args) == 3:
        args = (args[1], args[0], args[2])
    return _called(name, args, kwargs)


def _called(name: str, args: Any, kwargs: dict[str, Any]) -> Value:
    try:
        return _FUNCTIONS[name](*args, **kwargs)
    except TypeError as error:
        raise _no(f"torch's '{name}' is not a formula with these arguments: {error}") from None


_running: Any = threading.local()  # tracing: of this thread


class _Tracing(TorchFunctionMode):
    """Turns indices of tensors and functions of PyTorch into formulas where an argument is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[Any] = []
        self.in_mask = True
        _running.tracing = self

    def array(self, tensor: Any) -> Array:
        for n, known in enumerate(self.tensors):
            if known is tensor:
                return Array(tensor, f"a{n}", ())
        if len(self.tensors) == _MOST_ARRAYS:
            raise _no(f"more than {_MOST_ARRAYS} tensors are captured")
        _require_kept(tensor, self.in_mask)
        self.tensors.append(tensor)
        return Array(tensor, f"a{len(self.tensors) - 1}", ())

    def scalar(self, tensor: Any) -> Value:
        """A captured tensor without axes, whose only index is 0."""
        one = self.array(tensor)
        text = f"{one.name}[0]" + ("!=0" if tensor.dtype == torch.bool else "")
        return Value(text, one.binding, one.truth, one.whole)

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        flat = [*args, *kwargs.values()]
        traced = any(isinstance(x, Value) or (isinstance(x, tuple) and any(isinstance(y, Value) for y in x))
                     for x in flat)
        if not traced:
            return function(*args, **kwargs)
        if getattr(function, "__name__", "") == "__getitem__":
            return self.array(args[0])[args[1]]
        return _function(function, args, kwargs)


def _blocks_of(block_mask: Any, tracing: _Tracing, q: Value, k: Value, b: Value, h: Value) -> list[Value]:
    """Truths of a BlockMask: the pair's block is listed, and its mask_mod. Blocks may hide more than the function."""
    if not hasattr(block_mask, "kv_num_blocks"):
        return [_truth(block_mask(b, h, q, k))]
    listed = block_mask.to_dense().to(torch.int32)
    for axis, (made, x) in enumerate(zip(listed.shape, (b, h))):
        if made not in (1, x.high + 1) and x.high < math.inf:
            raise _no(f"block_mask was made for {made} {('batches', 'heads')[axis]}, and there are {x.high + 1}")
    size_q, size_k = block_mask.BLOCK_SIZE
    at = [*([b] if listed.shape[0] > 1 else []), *([h] if listed.shape[1] > 1 else []), q // size_q, k // size_k]
    listed = listed.reshape([n for axis, n in enumerate(listed.shape) if axis > 1 or n > 1])
    all_truths = [tracing.array(listed)[tuple(at)] != 0]
    if getattr(block_mask.mask_mod, "__name__", "") != "noop_mask":
        all_truths.append(_truth(block_mask.mask_mod(b, h, q, k)))
    return all_truths


def trace(score_mod: Callable[..., Any] | None = None, mask_mod: Any = None,
          shape: tuple[int, int, int, int] | None = None) -> tuple[str, list[Any]]:
    """The variant text of both functions, "formula mask=... score=...", and the tensors that they capture. mask_mod may
    be a BlockMask. shape is [batch, head, query, key]; without it an index such as q - k + 9 is taken for one that may
    be negative."""
    b, h, q, k = (Value(name, _PRIMARY, False, True, 0, extent - 1)
                  for name, extent in zip("bhqk", shape or (math.inf,) * 4))
    parts, text = [], ""
    with _Tracing() as tracing:
        if mask_mod is not None:
            first, *more = _blocks_of(mask_mod, tracing, q, k, b, h)
            parts.append(("mask", _logical(first, "&&", more[0], _BOTH) if more else first))
        tracing.in_mask = False
        if score_mod is not None:
            parts.append(("score", _number(score_mod(Value("s"), b, h, q, k))))
    order: list[int] = []  # the library numbers arrays in the order of their first appearance in the text
    for what, value in parts:
        text += f" {what}={value.text}"
        for at in range(len(value.text)):
            if value.text[at] == "a" and value.text[at + 1:at + 2].isdigit() and int(value.text[at + 1]) not in order:
                order.append(int(value.text[at + 1]))
    if len(text) - 1 > _MOST_TEXT:
        raise _no(f"the formula has {len(text) - 1} characters; at most {_MOST_TEXT} are accepted:{text}")
    return ("formula" + text if text else ""), [tracing.tensors[n] for n in order]


def _require_kept(tensor: Any, in_mask: bool) -> None:
    """An array is i32, i64 or f32, and its numbers are taken as f64: a mask must see the same numbers."""
    if tensor.is_complex():
        raise _no("a captured tensor is complex; accepted are real ones")
    x, least = tensor.detach(), -_MOST_WHOLE
    if x.dtype == torch.uint64:
        x, least = x.to(torch.int64), 0
    if x.dtype == torch.int64 and bool(((x < least) | (x > _MOST_WHOLE)).any()):
        raise _no("a captured tensor has whole numbers above 2**53, of which f64 has not all")
    if in_mask and x.dtype == torch.float64 and bool(((x.float().double() != x) & (x == x)).any()):
        raise _no("a captured tensor of a mask is f64 and has numbers that f32 has not; accepted is tensor.float()")


def _as_array(tensor: Any) -> Any:
    if tensor.dim() > 4:
        raise _no(f"a captured tensor has {tensor.dim()} axes; at most 4 are accepted")
    if tensor.dtype not in (torch.int32, torch.int64, torch.float32):
        wide = tensor.dtype in (torch.uint16, torch.uint32, torch.uint64)
        tensor = tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64 if wide else torch.int32)
    return tensor.reshape((1,) * (4 - tensor.dim()) + tuple(tensor.shape)).contiguous()


def flex_attention(query: Any, key: Any, value: Any, score_mod: Callable[..., Any] | None = None,
                   block_mask: Any = None, scale: float | None = None, enable_gqa: bool = False,
                   return_lse: bool = False, kernel_options: dict[str, Any] | None = None) -> Any:
    """FlexAttention of q, k and v [batch, head, token, dim]. block_mask is a BlockMask or a mask_mod. Gradients reach
    q, k, v and captured floating-point tensors of score_mod. kernel_options, which tune PyTorch's kernels, do nothing.
    """
    if not enable_gqa and query.shape[1] != key.shape[1]:
        raise _no(f"q has {query.shape[1]} heads and k has {key.shape[1]}; enable_gqa=True accepts both")
    lengths = (query.shape[2], key.shape[2])
    made_for = tuple(getattr(block_mask, "seq_lengths", lengths))
    if made_for != lengths:
        raise _no(f"block_mask was made for {made_for[0]} queries and {made_for[1]} keys, and there are {lengths[0]} "
                  f"and {lengths[1]}")
    variant, tensors = trace(score_mod, block_mask, (query.shape[0], query.shape[1], *lengths))
    options: dict[str, Any] = {}
    if variant:
        options = {"variant": variant, "variant_tensors": {n: _as_array(t) for n, t in enumerate(tensors)}}
    return attend(query, key, value, layout="bhsd", align="top_left", scale=scale, return_lse=return_lse, **options)
