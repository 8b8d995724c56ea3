# SPDX-License-Identifier: Apache-2.0
"""scaled_dot_product_attention with PyTorch's signature and semantics. _route installs it in PyTorch.

Calls that attune does not support (f64, nested tensors, other devices) go to PyTorch, and are counted."""

from __future__ import annotations

import collections
import dataclasses
import math
import threading
from typing import Any, Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn.attention.bias import CausalBias, CausalVariant

from .. import _core
from .._spec import Spec, is_scale, spec as plain_spec, spec_of
from ._attend import call, is_plain, is_usual, quick, reproducible
from ._ops import PLAIN

try:
    from torch.fx.experimental.symbolic_shapes import guard_or_true
except ImportError:  # PyTorch 2.5 and 2.6, whose compiler stops at a data-dependent length
    def guard_or_true(a: Any) -> bool:  # type: ignore[misc]
        return True if a else False  # they cannot compile bool(a) of a symbol

_torch_sdpa = F.scaled_dot_product_attention
is_compiling = torch.compiler.is_compiling
# Forms of calls without mask and dropout that attune is known to support: whether the output has the shape of q.
_served: dict[Any, bool] = {}
_specs: dict[Any, Spec] = {}  # of such calls, by is_causal and reproducibility
MOST = 4096
_NONE = (0.0, 0.0, 0.0)
_WHOLE = (0, 0)
_KNOWN = PLAIN | {FakeTensor, FunctionalTensor}  # types whose calls attune's operators support
_functorch = torch._C._functorch.peek_interpreter_stack
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclasses.dataclass
class Counters:
    """How many calls of scaled_dot_product_attention attune and PyTorch ran, and why PyTorch ran its own."""

    attune: int = 0
    torch: int = 0
    converted: int = 0  # calls of flash_attn_interface with e4m3, which ran in bf16
    why: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def clear(self) -> None:
        """Resets all counters."""
        self.attune = self.torch = self.converted = 0
        self.why.clear()


counters: Counters = Counters()
"""The counters of this process, for calls outside torch.compile."""


def refusal(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, is_causal: bool, scale: float | None,
             enable_gqa: bool) -> str | None:
    """Why PyTorch must run the call: attune does not support it, or PyTorch has an error for it."""
    if query.dtype not in _DTYPES:
        return f"dtype {query.dtype}"
    if query.device.type not in ("cpu", "cuda"):
        return f"device {query.device.type}"
    if query.is_nested or key.is_nested or value.is_nested:
        return "nested tensors"
    if is_compiling() and any(guard_or_true(n == 0) for t in (query, key, value) for n in t.shape):
        return "an empty tensor, or one of unknown size"
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
    if scale is not None and not is_scale(scale):
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
    """A mask as an additive bias."""
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(mask.logical_not(), -math.inf)
    if mask.shape[-1] > 1 and mask.stride(-1) != 1:
        mask = mask.contiguous()
    return mask


def _fold(t: Tensor, lead: torch.Size, axes: int) -> Tensor:
    """Folds [..., H, L, E] with `axes` axes into four, with the leading axes broadcast to `lead`."""
    if axes == 3:
        return t.expand(*lead, *t.shape[-2:]).unsqueeze(1)
    if axes == 2:
        return t[None, None]
    if t.shape[:-3] != lead:
        t = t.expand(*lead, *t.shape[-3:])
    return t if axes == 4 else t.reshape(-1, *t.shape[-3:])


def rows(t: Tensor) -> Tensor:
    """With a contiguous last axis."""
    return t if t.stride(-1) == 1 or t.shape[-1] == 1 else t.contiguous()


def by_attune(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float,
                 is_causal: bool, scale: float | None, enable_gqa: bool, align: str = "top_left",
                 plain: bool | None = None, seed: Tensor | None = None) -> Tensor:
    """seed: of dropout; None: drawn from PyTorch's generator."""
    axes = query.dim()
    if axes == 4 and query.shape[0] == key.shape[0] == value.shape[0] and (
            enable_gqa or query.shape[1] == key.shape[1] == value.shape[1]):
        lead, q, k, v = query.shape[:1], rows(query), rows(key), rows(value)
    else:
        lead = torch.broadcast_shapes(*(t.shape[:-2] if axes == 3 else t.shape[:-3] for t in (query, key, value)))
        heads = query.shape[-3] if enable_gqa and axes > 3 else 0
        if axes > 3 and not heads:
            most = max(t.shape[-3] for t in (query, key, value))
            query, key, value = (t.expand(*t.shape[:-3], most, *t.shape[-2:]) for t in (query, key, value))
        q, k, v = (rows(_fold(t, lead, axes)) for t in (query, key, value))
    numbers = (scale or 0.0, 0.0, dropout_p)
    if attn_mask is None and not dropout_p:
        out = call(plain_spec("bhsd", is_causal, None, reproducible(), align), q, k, v, (), numbers, _WHOLE, False,
                   plain)
    else:
        tensors: list[Tensor] = []
        given: list[str] = []
        if attn_mask is not None:
            given.append("bias")
            tensors.append(_mask_of(attn_mask, query, key, lead, axes))
        if dropout_p:
            given.append("seed")
            tensors.append(new_seed(q.device) if seed is None else seed)
        spec = spec_of(layout="bhsd", causal=is_causal, align=align, reproducible=reproducible(),
                       dropout="seed" in given, given=tuple(given))
        out = call(spec, q, k, v, tensors, numbers, _WHOLE, False, plain)
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
    """Seed and offset of dropout, from PyTorch's generator for the device."""
    return torch.randint(0, 2**62, (2,), dtype=torch.int64, device=device)


def form_of(query: Tensor, key: Tensor, value: Tensor, scale: float | None, enable_gqa: bool) -> Any:
    """The properties that decide whether attune supports a call without mask and dropout, apart from the library's
    refusals."""
    try:
        return query.shape, key.shape, value.shape, scale, enable_gqa
    except RuntimeError:  # a nested tensor has none
        return None


def is_served(form: Any) -> bool:
    return form in _served


def by_form(query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float | None,
            form: Any) -> Tensor | None:
    """The output of a call whose form is known to be supported; None if the form is new, or if dtypes, devices or
    strides do not match."""
    like_q = _served.get(form)
    if like_q is None:
        return None
    order = reproducible()
    spec = _specs.get((is_causal, order))
    if spec is None:
        spec = _specs[is_causal, order] = plain_spec("bhsd", is_causal, None, order, "top_left")
    numbers = (scale, 0.0, 0.0) if scale else _NONE
    try:
        if is_usual():
            out = quick(spec, query, key, value, numbers, like_q)
        else:
            out = call(spec, query, key, value, (), numbers, _WHOLE, False, True)
    except RuntimeError:  # raised by PyTorch for a tensor that is not strided
        return None
    counters.attune += 1
    return out


def scaled_dot_product_attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
                                 dropout_p: float = 0.0, is_causal: bool = False, *,
                                 scale: float | None = None, enable_gqa: bool = False) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention, implemented by attune.

    Accepts masks of every broadcast shape, boolean or additive, or from torch.nn.attention.bias; is_causal is aligned
    to the first key; a row that sees no key is 0. PyTorch runs calls that attune does not support:
    attune.torch.counters holds how often, and why. Inside torch.compile this depends on types, shapes and numbers only;
    a refusal by the library at run time is an error."""
    form = None
    if attn_mask is None and not dropout_p and is_plain(query, key, value):
        form = form_of(query, key, value, scale, enable_gqa)
        out = by_form(query, key, value, is_causal, scale, form)
        if out is not None:
            return out
    given, align = (attn_mask, is_causal), "top_left"
    if isinstance(attn_mask, CausalBias):
        align = align_of(attn_mask, is_causal)
        attn_mask, is_causal = None, True
    why = refusal(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    if why is None and dropout_p >= 1:
        why = f"dropout_p {dropout_p}"
    if why is None:
        try:
            out = by_attune(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, align)
            if not is_compiling():
                counters.attune += 1
                if form and query.dim() == 4 and query.shape[0] == key.shape[0] == value.shape[0] and (
                        enable_gqa or query.shape[1] == key.shape[1] == value.shape[1]):
                    if len(_served) > MOST:
                        _served.clear()
                    _served[form] = query.shape[-1] == value.shape[-1]
            return out
        except _core.Error as error:
            why = str(error)
    return by_torch(why, query, key, value, given[0], dropout_p, given[1], scale, enable_gqa)


def align_of(bias: CausalBias, is_causal: bool) -> str:
    if is_causal:
        raise ValueError("CausalBias should not be used with causal=True")  # PyTorch's message
    square = bias.seq_len_q == bias.seq_len_kv
    return "top_left" if square or bias.variant == CausalVariant.UPPER_LEFT else "bottom_right"


def by_torch(why: str, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float,
              is_causal: bool, scale: float | None, enable_gqa: bool) -> Tensor:
    if not is_compiling():
        counters.torch += 1
        counters.why[why] += 1
    return theirs(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


_lock = threading.Lock()
_away: list[Any] = [0, None]  # number of calls that need PyTorch's function in place, and the function to restore


def theirs(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool, *,
            scale: float | None, enable_gqa: bool) -> Tensor:
    """PyTorch's result. A subclass of Tensor identifies the function through torch.nn.functional, so the original is
    restored during the call. A compiler would see that change, so it gets a mask instead."""
    def ask(mask: Tensor | None, causal: bool) -> Tensor:
        return _torch_sdpa(query, key, value, mask, dropout_p, causal, scale=scale, enable_gqa=enable_gqa)

    if is_compiling():
        if not isinstance(attn_mask, CausalBias):
            return ask(attn_mask, is_causal)
        if align_of(attn_mask, is_causal) == "top_left":
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


def put(function: Callable[..., Tensor]) -> None:
    with _lock:
        if _away[0]:
            _away[1] = function
        else:
            F.scaled_dot_product_attention = function


def what_is_put() -> Callable[..., Tensor]:
    with _lock:
        return _away[1] if _away[0] else F.scaled_dot_product_attention
