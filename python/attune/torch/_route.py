# SPDX-License-Identifier: Apache-2.0
"""Replaces torch.nn.functional.scaled_dot_product_attention by attune: always, or where attune is measured to be
faster."""

from __future__ import annotations

import contextlib
import math
import re
import time
from operator import index
from typing import Any, Callable, Iterator, Literal

import torch
from torch import Tensor
from torch.jit._builtins import _register_builtin
from torch.nn.attention.bias import CausalBias, causal_lower_right, causal_upper_left
from torch.utils._python_dispatch import _disable_current_modes

from .. import _core
from . import _sdpa
from ._attend import is_plain
from ._sdpa import Counters, align_of, by_form, by_torch, counters, form_of, is_compiling, is_served, refusal

try:
    import torch.compiler.config as _compiler
except ImportError:  # PyTorch 2.5
    _compiler = None  # type: ignore[assignment]

_grads = torch.is_grad_enabled
_faster: dict[Any, bool] = {}  # measured results: whether attune is faster, by _key and by exact shapes


_MOST_RUNS = 4  # of each implementation; with the call itself, the first call of a size costs at most nine


def _is_first_faster(first: Callable[[], Any], second: Callable[[], Any], device: torch.device) -> bool:
    """Compares the quickest runs of two implementations, in turns. Stops as soon as they clearly differ: after the
    first runs if those are so long that a warm-up does not count. An implementation that runs out of memory is not
    faster."""
    def seconds(run: Callable[[], Any]) -> float:
        begin = time.perf_counter()
        try:
            run()
        except torch.OutOfMemoryError:
            return math.inf
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - begin

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    quickest = math.inf, math.inf
    for n in range(_MOST_RUNS):
        runs = seconds(first), seconds(second)
        if math.inf in runs:
            return runs[0] < runs[1]
        quickest = runs if n < 2 else (min(quickest[0], runs[0]), min(quickest[1], runs[1]))  # the first run warms up
        least, most = sorted(quickest)
        if most > 1.3 * least and (n > 0 or least > 0.02):
            break
    return quickest[0] < quickest[1]


def _generator(device: torch.device) -> torch.Generator:
    """Random numbers for a measurement: those of PyTorch belong to the program, and to its other threads."""
    return torch.Generator(device).manual_seed(0)


def _theirs_with_dropout(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float,
                         is_causal: bool, scale: float | None, enable_gqa: bool) -> Tensor:
    """PyTorch's attention with dropout, timed without its global generator: on a CPU the same operator, with a mask
    drawn here; on a GPU without dropout, which changes little there."""
    if isinstance(attn_mask, CausalBias):
        is_top, attn_mask = align_of(attn_mask, is_causal) == "top_left", None
        if not is_top and query.shape[-2] != key.shape[-2]:
            attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril(
                key.shape[-2] - query.shape[-2])
        is_causal = attn_mask is None
    if query.device.type != "cpu":
        return _sdpa._torch_sdpa(query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
    lead = torch.broadcast_shapes(query.shape[:-2], () if enable_gqa else key.shape[:-2])
    kept = torch.empty(*lead, query.shape[-2], key.shape[-2], dtype=query.dtype)
    kept.bernoulli_(1 - dropout_p, generator=_generator(query.device))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = _sdpa.added(attn_mask, query.dtype)
    out: Tensor = torch.ops.aten._scaled_dot_product_attention_math(
        query, key, value, attn_mask, dropout_p, is_causal, kept, scale=scale, enable_gqa=enable_gqa)[0]
    return out


def _measure(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool,
             scale: float | None, enable_gqa: bool, needs_grad: bool, plain: bool | None = None) -> bool:
    """Times both at these sizes, including the backward if a gradient is required; returns whether attune is faster.
    Random generators are not used, and saved-tensor hooks (such as a checkpoint's) do not see the tensors. plain=False:
    attune through its operators, as a compiled program calls it."""
    seed = None
    if dropout_p:
        seed = torch.randint(0, 2**62, (2,), dtype=torch.int64, device=query.device,
                             generator=_generator(query.device))

    def run(sdpa: Callable[[], Tensor]) -> None:
        out = sdpa()
        if needs_grad:
            torch.autograd.grad(out, (q, k, v), torch.ones_like(out))

    def ours() -> Tensor:
        align, mask, causal = "top_left", attn_mask, is_causal
        if isinstance(attn_mask, CausalBias):
            align = align_of(attn_mask, is_causal)
            mask, causal = None, True
        return _sdpa.by_attune(q, k, v, mask, dropout_p, causal, scale, enable_gqa, align, plain, seed)

    def theirs() -> Tensor:
        if dropout_p:
            return _theirs_with_dropout(q, k, v, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        return _sdpa.theirs(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    with torch.set_grad_enabled(needs_grad), torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        try:
            q, k, v = (t.detach().clone(memory_format=torch.preserve_format).requires_grad_(needs_grad)
                       for t in (query, key, value))
            return _is_first_faster(lambda: run(ours), lambda: run(theirs), query.device)
        except (_core.Error, torch.OutOfMemoryError):
            return False


def _near(length: int) -> int:
    """The next power of two, because caches grow with every token. Uses comparisons, which give a compiler bounds for
    an unknown length."""
    near = 1
    while near < length:
        near *= 2
    return near


def _batch(size: int) -> int:
    """One, or more than one: one measurement serves all batches."""
    return 2 if size > 1 else 1


def _sizes(t: Tensor) -> tuple[int, ...]:
    lead = [*map(_batch, t.shape[:-3]), *t.shape[-3:-2]] if t.dim() > 3 else map(_batch, t.shape[:-2])
    return *lead, _near(t.shape[-2]), t.shape[-1]


def _key(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool,
         needs_grad: bool) -> Any:
    mask: Any = None
    if isinstance(attn_mask, CausalBias):
        mask = align_of(attn_mask, is_causal)
    elif attn_mask is not None:
        mask = (*map(_batch, attn_mask.shape[:-2]), *map(_near, attn_mask.shape[-2:]), attn_mask.dtype)
    return (query.device, query.dtype, _sizes(query), _sizes(key), _sizes(value), mask, dropout_p != 0,
            is_causal, needs_grad)


def _keep(at: Any, faster: bool) -> bool:
    if len(_faster) >= _sdpa.MOST:
        _faster.clear()
    _faster[at] = faster
    return faster


def _bounds(t: Tensor, dim: bool) -> tuple[int, ...]:
    """Sizes that are concrete numbers in a compiler too: heads and the last axis of q, k and v exactly; batches as 1 or
    2, and lengths rounded up to a power of two, which holds for more than one size."""
    axes = t.dim()
    return tuple([index(n) if (dim and at == axes - 1) or (axes > 3 and at == axes - 3) else
                  _near(n) if at >= axes - 2 else _batch(n) for at, n in enumerate(t.shape)])


def _is_transposed(t: Tensor) -> bool:
    """Whether [batch, head, seq, dim] is stored as [batch, seq, head, dim]."""
    # PyTorch 2.5 cannot compile bool() of a symbol.
    return True if t.dim() == 4 and t.stride(1) < t.stride(2) else False


def _choice(device: torch.device, dtype: torch.dtype, shapes: tuple[tuple[int, ...], ...], transposed: tuple[bool, ...],
            mask: Any, drops: bool, is_causal: bool, enable_gqa: bool, needs_grad: bool) -> bool:
    """Whether attune is faster, evaluated while a program is compiled: from sizes, for which tensors are made here.
    attune is timed through its operators, which the program calls."""
    at = (device, dtype, shapes, transposed, mask, drops, is_causal, enable_gqa, needs_grad)
    faster = _faster.get(at)
    if faster is not None:
        return faster

    def made(shape: tuple[int, ...], is_transposed: bool) -> Tensor:
        if is_transposed:
            batch, heads, rows, dim = shape
            shape = batch, rows, heads, dim
        drawn = torch.randn(shape, dtype=dtype, device=device, generator=generator)
        return drawn.transpose(1, 2) if is_transposed else drawn

    with _disable_current_modes():
        generator = _generator(device)
        try:
            given: Tensor | None = None
            if isinstance(mask, str):
                make = causal_upper_left if mask == "top_left" else causal_lower_right
                given = make(shapes[0][-2], shapes[1][-2])
            elif mask is not None:
                given = torch.ones(mask[0], dtype=mask[1], device=device)
            q, k, v = (made(shape, is_transposed) for shape, is_transposed in zip(shapes, transposed))
        except torch.OutOfMemoryError:
            return False
        dropout = 0.1 if drops else 0.0
        return _keep(at, _measure(q, k, v, given, dropout, is_causal, None, enable_gqa, needs_grad, False))


# torch.compile treats the result as a constant and does not trace the function.
setattr(_choice, "_dynamo_marked_constant", True)

_SWITCHES = (torch._C._get_flash_sdp_enabled, torch._C._get_mem_efficient_sdp_enabled,
             torch._C._get_math_sdp_enabled, torch._C._get_cudnn_sdp_enabled)
_flash, _efficient, _math, _cudnn = _SWITCHES
_usual = [is_on() for is_on in _SWITCHES]


def _is_chosen() -> bool:
    """Whether the user selected among PyTorch's own backends, for example with torch.nn.attention.sdpa_kernel."""
    return not is_compiling() and [_flash(), _efficient(), _math(), _cudnn()] != _usual


_on: list[str] = []  # the route, while one is installed: other modules may keep a reference to its function
_CHOSEN = "a choice among PyTorch's backends"
_SLOWER = "measured slower"


def _always(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
            is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False) -> Tensor:
    if not _on:
        return _sdpa._torch_sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    if _is_chosen():
        return by_torch(_CHOSEN, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    return _sdpa.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                                              enable_gqa=enable_gqa)


def _routed(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
            is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False) -> Tensor:
    if not _on:
        return _sdpa._torch_sdpa(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    at: Any = None
    if attn_mask is None and not dropout_p and is_plain(query, key, value):
        # Looks up the choice for these exact shapes first: the rest costs more than a small call.
        form = form_of(query, key, value, scale, enable_gqa)
        if form is not None:
            at = (form, query.dtype, query.device, is_causal, _wants(query, key, value))
        faster = _faster.get(at)
        if faster is not None and not _is_chosen():
            if not faster:
                counters.torch += 1
                counters.why[_SLOWER] += 1
                return _sdpa._torch_sdpa(query, key, value, None, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa)
            if (out := by_form(query, key, value, is_causal, scale, form)) is not None:
                return out
    given = (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    causal = isinstance(attn_mask, CausalBias)
    why = _CHOSEN if _is_chosen() else refusal(query, key, value, None if causal else attn_mask, is_causal, scale,
                                               enable_gqa)
    if why is None and not is_compiling() and query.is_cuda and torch.cuda.is_current_stream_capturing() and \
            _key(query, key, value, attn_mask, dropout_p, is_causal, _wants(query, key, value)) not in _faster:
        why = "not measured yet"
    if why is None and not _is_faster(*given):
        why = _SLOWER
        if at is not None:
            _keep(at, False)
    if why:
        return by_torch(why, *given)
    out = _sdpa.scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale=scale,
                                             enable_gqa=enable_gqa)
    if at is not None and is_served(form):
        _keep(at, True)
    return out


def _wants(query: Tensor, key: Tensor, value: Tensor) -> bool:
    return _grads() and (query.requires_grad or key.requires_grad or value.requires_grad)


def _is_faster(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None, dropout_p: float, is_causal: bool,
               scale: float | None, enable_gqa: bool) -> bool:
    needs_grad = _wants(query, key, value)
    if is_compiling():
        mask: Any = None
        if isinstance(attn_mask, CausalBias):
            mask = align_of(attn_mask, is_causal)
        elif attn_mask is not None:
            mask = (_bounds(attn_mask, False), attn_mask.dtype)
        return _choice(query.device, query.dtype, (_bounds(query, True), _bounds(key, True), _bounds(value, True)),
                       (_is_transposed(query), _is_transposed(key), _is_transposed(value)), mask,
                       True if dropout_p else False, is_causal, enable_gqa, needs_grad)
    at = _key(query, key, value, attn_mask, dropout_p, is_causal, needs_grad)
    faster = _faster.get(at)
    if faster is None:
        faster = _keep(at, _measure(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, needs_grad))
    return faster


_ROUTES: dict[Any, str] = {_routed: "measured", _always: "always"}
_TAG = re.compile(r" ?attune [^ ]+ (measured|always)$")
_kept: list[bool] = []  # previous value of enable_autograd_cache, if it had to be disabled


def _put(function: Callable[..., Tensor]) -> None:
    """Installs a function in PyTorch, and gives programs compiled from now on separate keys in the on-disk caches.

    Those are keyed by Dynamo's graph, in which F.multi_head_attention_forward is one node, whatever it calls. A process
    without attune would otherwise find a program that calls attune::forward, and vice versa. PyTorch 2.5 has no key
    tag; it caches whole programs on disk only on request, and not while attune is installed."""
    _sdpa.put(function)
    route = _ROUTES.get(function)
    _on[:] = [route] if route else []
    if hasattr(_compiler, "cache_key_tag"):
        own = _TAG.sub("", _compiler.cache_key_tag)  # the user's tag, which is restored afterwards
        _compiler.cache_key_tag = f"{own} attune {_core.version()} {route}".lstrip() if route else own
        return
    from torch._functorch import config

    if route and not _kept and hasattr(config, "enable_autograd_cache"):
        _kept.append(config.enable_autograd_cache)
        config.enable_autograd_cache = False
    elif not route and _kept:
        config.enable_autograd_cache = _kept.pop()


def install(route: Literal["measured", "always"] = "measured") -> None:
    """Replaces torch.nn.functional.scaled_dot_product_attention by attune.

    "measured": the first call with each combination of sizes times both, and the faster one runs from then on; lengths
    up to the same power of two count as one size, and so do all batches above 1. It costs at most nine calls, and no
    random numbers of PyTorch. Inside torch.compile this happens at compile time, with tensors of
    such sizes and with attune's operators, which the program calls. "always": attune runs everything it supports. If
    torch.nn.attention.sdpa_kernel selects among PyTorch's own backends, PyTorch runs; programs of torch.compile do not
    check this. Programs of torch.jit.script keep PyTorch's function.

    A compiled program does not change afterwards; after torch.compiler.reset() it is compiled again. Programs on disk
    get separate keys through torch.compiler.config.cache_key_tag, which this extends and uninstall() restores: set your
    own tag before."""
    if route not in ("measured", "always"):
        raise _core.Error(f"attune: route {route!r} is not one of measured, always")
    _usual[:] = [is_on() for is_on in _SWITCHES]  # backends disabled permanently are not a per-call selection
    function = _routed if route == "measured" else _always
    _register_builtin(function, "aten::scaled_dot_product_attention")
    _put(function)


def uninstall() -> None:
    """Restores PyTorch's own function."""
    _put(_sdpa._torch_sdpa)


@contextlib.contextmanager
def installed(route: Literal["measured", "always"] = "measured") -> Iterator[Counters]:
    """install() for the duration of a with block; restores the previous function afterwards."""
    before = _sdpa.what_is_put()
    install(route)
    try:
        yield counters
    finally:
        _put(before)
