"""scaled_dot_product_attention with PyTorch's signature and meaning, and a way to put it in PyTorch's place.

What attune does not serve (f64, nested tensors, other devices) goes to PyTorch, and is counted."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import threading
import time
from typing import Any, Callable, Iterator, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.jit._builtins import _register_builtin
from torch.nn.attention.bias import CausalBias, CausalVariant

from .. import _core
from .._spec import spec as plain_spec, spec_of
from ._attend import call, is_plain, reproducible
from ._ops import PLAIN

try:
    from torch.fx.experimental.symbolic_shapes import guard_or_true
except ImportError:  # PyTorch 2.5 and 2.6, whose compiler stops at a length that depends on data
    def guard_or_true(a: Any) -> bool:  # type: ignore[misc]
        return True if a else False  # bool(a) of a symbol is not compiled there

_torch_sdpa = F.scaled_dot_product_attention
is_compiling = torch.compiler.is_compiling
_served: set[Any] = set()  # forms of calls without mask and dropout that were looked at and are attune's
_MOST = 4096
_NONE = (0.0, 0.0, 0.0)
_WHOLE = (0, 0)
_KNOWN = PLAIN | {FakeTensor, FunctionalTensor}  # types whose calls the operators of attune serve
_functorch = torch._C._functorch.peek_interpreter_stack
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclasses.dataclass
class Counters:
    """Which calls of scaled_dot_product_attention ran where, and why those that PyTorch ran did."""

    attune: int = 0
    torch: int = 0
    converted: int = 0  # calls of flash_attn_interface with e4m3, which ran in bf16
    why: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def clear(self) -> None:
        self.attune = self.torch = self.converted = 0
        self.why.clear()


counters = Counters()


def _refusal(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float | None,
             enable_gqa: bool) -> str | None:
    """Why PyTorch has to see the call: what attune does not serve, and what PyTorch has an error for."""
    if query.dtype not in _DTYPES:
        return f"dtype {query.dtype}"
    if query.device.type not in ("cpu", "cuda"):
        return f"device {query.device.type}"
    if query.is_nested or key.is_nested or value.is_nested:
        return "nested tensors"
    if is_compiling() and any(guard_or_true(n == 0) for t in (query, key, value) for n in t.shape):
        return "an empty tensor, or one of which nobody knows"
    if not is_compiling():
        for t in (query, key, value, attn_mask):
            if t is not None and type(t) not in _KNOWN:
                return f"a tensor of type {type(t).__name__}"
        if _functorch() is not None:
            return "a transform of torch.func"
        if torch.jit.is_tracing():
            return "torch.jit.trace"
    if any(t is not None and t.layout is not torch.strided for t in (query, key, value, attn_mask)):
        return "a tensor that is not strided"
    if query.dim() < 2 or key.dim() != query.dim() or value.dim() != query.dim():
        return "tensors of different numbers of axes"
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2] or key.dtype != query.dtype or \
            value.dtype != query.dtype or not query.device == key.device == value.device:
        return "tensors that do not go together"
    if 0 in query.shape or 0 in key.shape or 0 in value.shape:
        return "an empty tensor"
    if scale is not None and not (scale > 0 and math.isfinite(scale)):
        return f"scale {scale}"
    if query.dim() > 3 and query.shape[-3] != key.shape[-3] and not enable_gqa and 1 not in (
            query.shape[-3], key.shape[-3]):
        return "heads that differ without enable_gqa"
    if enable_gqa and query.dim() < 4:
        return f"enable_gqa with {query.dim()} axes"
    if enable_gqa and (query.shape[-3] % key.shape[-3] or key.shape[-3] != value.shape[-3]):
        return "heads that do not divide"
    if attn_mask is not None:
        if is_causal:
            return "attn_mask beside is_causal"
        if attn_mask.dtype not in (torch.bool, torch.float32, query.dtype) or attn_mask.device != query.device:
            return f"attn_mask of {attn_mask.dtype}"
        if not 1 <= attn_mask.dim() <= query.dim():
            return f"attn_mask of {attn_mask.dim()} axes"
        if attn_mask.shape[-1] not in (1, key.shape[-2]) or (
                attn_mask.dim() > 1 and attn_mask.shape[-2] not in (1, query.shape[-2])):
            return "attn_mask of other rows or keys"
    return None


def added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as numbers that are added."""
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(mask.logical_not(), -math.inf)
    if mask.shape[-1] > 1 and mask.stride(-1) != 1:
        mask = mask.contiguous()
    return mask


def _fold(t: Tensor, lead: torch.Size, axes: int) -> Tensor:
    """[..., H, L, E] of `axes` axes to four, with the leading axes broadcast to `lead`."""
    if axes == 3:
        return t.expand(*lead, *t.shape[-2:]).unsqueeze(1)
    if axes == 2:
        return t[None, None]
    if t.shape[:-3] != lead:
        t = t.expand(*lead, *t.shape[-3:])
    return t if axes == 4 else t.reshape(-1, *t.shape[-3:])


def _rows(t: Tensor) -> Tensor:
    return t if t.stride(-1) == 1 or t.shape[-1] == 1 else t.contiguous()


def _attune_sdpa(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float,
                 is_causal: bool, scale: float | None, enable_gqa: bool, align: str = "top_left") -> Tensor:
    axes = query.dim()
    if axes == 4 and query.shape[0] == key.shape[0] == value.shape[0] and (
            enable_gqa or query.shape[1] == key.shape[1] == value.shape[1]):
        lead, q, k, v = query.shape[:1], _rows(query), _rows(key), _rows(value)
    else:
        lead = torch.broadcast_shapes(*(t.shape[:-2] if axes == 3 else t.shape[:-3] for t in (query, key, value)))
        heads = query.shape[-3] if enable_gqa and axes > 3 else 0
        if axes > 3 and not heads:
            most = max(t.shape[-3] for t in (query, key, value))
            query, key, value = (t.expand(*t.shape[:-3], most, *t.shape[-2:]) for t in (query, key, value))
        q, k, v = (_rows(_fold(t, lead, axes)) for t in (query, key, value))
    numbers = (scale or 0.0, 0.0, dropout_p)
    if attn_mask is None and not dropout_p:
        out = call(plain_spec("bhsd", is_causal, None, reproducible(), align), q, k, v, (), numbers, (0, 0), False)
    else:
        tensors: list[Tensor] = []
        given: list[str] = []
        if attn_mask is not None:
            given.append("bias")
            tensors.append(_mask_of(attn_mask, query, key, lead, axes))
        if dropout_p:
            given.append("seed")
            tensors.append(new_seed(q.device))
        spec = spec_of(layout="bhsd", causal=is_causal, align=align, reproducible=reproducible(),
                       dropout="seed" in given, given=tuple(given))
        out = call(spec, q, k, v, tensors, numbers, (0, 0), False)
    if axes == 4:
        return out
    return out.reshape(*lead, *(out.shape[1:] if axes > 3 else out.shape[-2:]))


def _mask_of(mask: Tensor, query: Tensor, key: Tensor, lead: torch.Size, axes: int) -> Tensor:
    bias = added(mask, query.dtype)
    bias = bias[(None,) * (axes - bias.dim())] if bias.dim() < axes else bias
    if axes == 3:
        return bias.unsqueeze(1)
    if axes == 2:
        return bias[None, None]
    if axes > 4:
        bias = bias.expand(*lead, *bias.shape[-3:]).reshape(-1, *bias.shape[-3:])
    return bias


def new_seed(device: torch.device) -> Tensor:
    """Seed and offset of dropout, from PyTorch's generator of the device."""
    return torch.randint(0, 2**62, (2,), dtype=torch.int64, device=device)


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, *,
                                 scale: float | None = None, enable_gqa: bool = False) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, by attune.

    Masks of every broadcast shape, boolean or added, or of torch.nn.attention.bias; is_causal begins at the first key;
    a row that sees no key is 0.
    What attune does not serve PyTorch runs: attune.torch.counters says how often, and why. Inside torch.compile that
    holds for what types, shapes and numbers say; what the library itself refuses when the program runs is an error."""
    common = attn_mask is None and not dropout_p and is_plain(query, key, value) and not (
        query.is_nested or key.is_nested or value.is_nested)
    if common:
        form = (query.shape, key.shape, value.shape, scale, enable_gqa)
        if form in _served:
            try:
                out = call(plain_spec("bhsd", is_causal, None, reproducible(), "top_left"), query, key, value, (),
                           (scale, 0.0, 0.0) if scale else _NONE, _WHOLE, False, True)
                counters.attune += 1
                return out
            except _core.Error:
                pass  # dtypes, devices or strides that do not go together: looked at below
    given, align = (attn_mask, is_causal), "top_left"
    if isinstance(attn_mask, CausalBias):
        align = _align_of(attn_mask, is_causal)
        attn_mask, is_causal = None, True
    why = _refusal(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    if why is None and dropout_p >= 1:
        why = f"dropout_p {dropout_p}"
    if why is None:
        try:
            out = _attune_sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, align)
            if not is_compiling():
                counters.attune += 1
                if common and query.dim() == 4 and query.shape[0] == key.shape[0] == value.shape[0] and (
                        enable_gqa or query.shape[1] == key.shape[1] == value.shape[1]):
                    if len(_served) > _MOST:
                        _served.clear()
                    _served.add(form)
            return out
        except _core.Error as refusal:
            why = str(refusal)
    return _by_torch(why, query, key, value, given[0], dropout_p, given[1], scale, enable_gqa)


def _align_of(bias: CausalBias, is_causal: bool) -> str:
    if is_causal:
        raise ValueError("CausalBias should not be used with causal=True")  # PyTorch's words
    square = bias.seq_len_q == bias.seq_len_kv
    return "top_left" if square or bias.variant == CausalVariant.UPPER_LEFT else "bottom_right"


def _by_torch(why: str, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float,
              is_causal: bool, scale: float | None, enable_gqa: bool) -> Tensor:
    if not is_compiling():
        counters.torch += 1
        counters.why[why] += 1
    return _theirs(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


_lock = threading.Lock()
_away: list[Any] = [0, None]  # how many calls want PyTorch's function to be in its place, and what was there


def _theirs(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool, *,
            scale: float | None, enable_gqa: bool) -> Tensor:
    """PyTorch's answer. A subclass of Tensor knows the function by what torch.nn.functional has, so that is there while
    it is asked; a compiler would see the change, and gets a mask instead."""
    def ask(mask: Tensor | None, causal: bool) -> Tensor:
        return _torch_sdpa(query, key, value, mask, dropout_p, causal, scale=scale, enable_gqa=enable_gqa)

    if is_compiling():
        if not isinstance(attn_mask, CausalBias):
            return ask(attn_mask, is_causal)
        if _align_of(attn_mask, is_causal) == "top_left":
            return ask(None, True)
        rows, keys = query.shape[-2], key.shape[-2]
        return ask(torch.ones(rows, keys, dtype=torch.bool, device=query.device).tril(keys - rows), False)
    if all(t is None or type(t) in _KNOWN for t in (query, key, value, attn_mask)):
        return ask(attn_mask, is_causal)
    with _lock:
        if not _away[0]:
            _away[1] = F.scaled_dot_product_attention
            F.scaled_dot_product_attention = _torch_sdpa
        _away[0] += 1
    try:
        return ask(attn_mask, is_causal)
    finally:
        with _lock:
            _away[0] -= 1
            if not _away[0]:
                F.scaled_dot_product_attention = _away[1]


def _put(function: Callable[..., Tensor]) -> None:
    with _lock:
        if _away[0]:
            _away[1] = function
        else:
            F.scaled_dot_product_attention = function


_faster: dict[Any, bool] = {}  # what was measured: is attune the faster one?


def _seconds(run: Callable[[], Any], device: torch.device) -> float:
    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    run()
    times = []
    for _ in range(5):
        wait()
        begin = time.perf_counter()
        for _ in range(3):
            run()
        wait()
        times.append(time.perf_counter() - begin)
    return sorted(times)[2]


def _measure(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool,
             scale: float | None, enable_gqa: bool, needs_grad: bool) -> bool:
    """Times both at these sizes, with their backward where a gradient is wanted. Nobody's generator moves, and nobody's
    hooks (a checkpoint's, say) see the tensors that are saved. Who runs out of memory is not the faster one."""
    devices = [query.device] if query.device.type == "cuda" else []

    def run(sdpa: Callable[..., Tensor]) -> None:
        out = sdpa(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
        if needs_grad:
            torch.autograd.grad(out, (q, k, v), torch.ones_like(out))

    def ours(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool,
             **named: Any) -> Tensor:
        align = "top_left"
        if isinstance(mask, CausalBias):
            align = _align_of(mask, causal)
            mask, causal = None, True
        return _attune_sdpa(q, k, v, mask, dropout, causal, named["scale"], named["enable_gqa"], align)

    def seconds(sdpa: Callable[..., Tensor]) -> float:
        try:
            return _seconds(lambda: run(sdpa), query.device)
        except torch.OutOfMemoryError:
            return math.inf

    with torch.random.fork_rng(devices), torch.set_grad_enabled(needs_grad), \
            torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        try:
            q, k, v = (t.detach().clone(memory_format=torch.preserve_format).requires_grad_(needs_grad)
                       for t in (query, key, value))
            return seconds(ours) < seconds(_theirs)
        except (_core.Error, torch.OutOfMemoryError):
            return False


def _near(length: int) -> int:
    """The next power of two: caches grow by every token. By comparing, which a compiler takes for bounds of a length
    that it does not know."""
    near = 1
    while near < length:
        near *= 2
    return near


def _sizes(t: Tensor) -> tuple[int, ...]:
    return *t.shape[:-2], _near(t.shape[-2]), t.shape[-1]


def _key(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool,
         needs_grad: bool) -> Any:
    mask: Any = None
    if isinstance(attn_mask, CausalBias):
        mask = _align_of(attn_mask, is_causal)
    elif attn_mask is not None:
        mask = (*attn_mask.shape[:-2], *map(_near, attn_mask.shape[-2:]), attn_mask.dtype)
    return (query.device, query.dtype, _sizes(query), _sizes(key), _sizes(value), mask, dropout_p != 0,
            is_causal, needs_grad)


_flags = torch.backends.cuda
_SWITCHES = (_flags.flash_sdp_enabled, _flags.mem_efficient_sdp_enabled, _flags.math_sdp_enabled,
             _flags.cudnn_sdp_enabled)
_usual = [is_on() for is_on in _SWITCHES]


def _is_chosen() -> bool:
    """Whether somebody chose among PyTorch's own backends, by torch.nn.attention.sdpa_kernel say."""
    return not is_compiling() and [is_on() for is_on in _SWITCHES] != _usual


_CHOSEN = "a choice among PyTorch's backends"


def _always(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
            is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False) -> Tensor:
    if _is_chosen():
        return _by_torch(_CHOSEN, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    return scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                                        enable_gqa=enable_gqa)


def _routed(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
            is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False) -> Tensor:
    causal = isinstance(attn_mask, CausalBias)
    why = _CHOSEN if _is_chosen() else _refusal(query, key, value, None if causal else attn_mask, is_causal, scale,
                                                enable_gqa)
    if why:
        return _by_torch(why, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    needs_grad = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad)
    at = _key(query, key, value, attn_mask, dropout_p, is_causal, needs_grad)
    faster = _faster.get(at)
    if faster is None:
        if is_compiling() or (query.is_cuda and torch.cuda.is_current_stream_capturing()):
            return _by_torch("not measured yet", query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        if len(_faster) >= _MOST:
            _faster.clear()
        faster = _faster[at] = _measure(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa,
                                        needs_grad)
    if faster:
        return scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                                        enable_gqa=enable_gqa)
    return _by_torch("measured slower", query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def install(route: Literal["measured", "always"] = "measured") -> None:
    """Puts attune in the place of torch.nn.functional.scaled_dot_product_attention.

    "measured": the first call of every combination of sizes times both, and the faster one runs from then on; lengths
    up to the same power of two are one size.
    "always": attune runs whatever it serves.
    Where torch.nn.attention.sdpa_kernel chooses among PyTorch's own backends, PyTorch runs; programs of torch.compile
    do not ask. Programs of torch.jit.script have PyTorch's."""
    if route not in ("measured", "always"):
        raise _core.Error(f"attune: route {route!r} is not one of measured, always")
    _usual[:] = [is_on() for is_on in _SWITCHES]  # what is switched off for good is no choice of a call
    function = _routed if route == "measured" else _always
    _register_builtin(function, "aten::scaled_dot_product_attention")
    _put(function)


def uninstall() -> None:
    _put(_torch_sdpa)


@contextlib.contextmanager
def installed(route: Literal["measured", "always"] = "measured") -> Iterator[Counters]:
    """install() for a while; what was there before is there again afterwards."""
    with _lock:
        before = _away[1] if _away[0] else F.scaled_dot_product_attention
    install(route)
    try:
        yield counters
    finally:
        _put(before)
