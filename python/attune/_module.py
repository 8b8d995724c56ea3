# SPDX-License-Identifier: Apache-2.0
"""Layers of the library: named parameters, a forward and a backward, without a framework. attune.torch.Module adds
autograd."""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any

from . import _core
from ._arrays import empty, shape_of, stream_of
from ._spec import check_whole
from ._view import View, dtype_number

_ALIGN = 64  # alignment of a tape, in bytes


class Module:
    """A layer described by one line of text, docs/modules.md:

        layer = attune.Module("llama bf16 b1 s4096 e4096 h32/8 ffn=14336 | causal", "cuda:0")
        layer = attune.Module("multihead f32 b2 s512 e768 h12 norm=1 | causal : dilated rates=1,2 segments=128,256")

    Sizes are those of the line. For another batch or length, create another module that shares the parameters and
    gradients of this one (shares). Concurrent calls are safe as long as parameters and gradients do not change.
    """

    def __init__(self, text: str, device: Any = "cpu", *, shares: Module | None = None) -> None:
        self._handle: object = _core.module_create(text, str(device), shares._handle if shares else None)
        self.text: str
        self.why: str
        self.tape_bytes: int
        self.text, self.why, names, self.tape_bytes = _core.module_about(self._handle)
        self.names: tuple[str, ...] = tuple(names)
        self.device: str = str(device)

    def parameter(self, name: str) -> View:
        """A parameter's memory, for from_dlpack; writable in place."""
        _core.module_view(self._handle, name, False, True)  # reports a wrong name here
        return View(functools.partial(_core.module_view, self._handle, name, False))

    def gradient(self, name: str) -> View:
        """The gradient of a parameter, f32, 0 until a backward. The first request allocates all gradients."""
        _core.module_view(self._handle, name, True, True)
        return View(functools.partial(_core.module_view, self._handle, name, True))

    def load(self, path: str | os.PathLike[str], prefix: str = "", convert: bool = False) -> None:
        """Loads every parameter from a safetensors file, where it is named prefix + name. convert: also accepts other
        floating dtypes. A file that does not match changes nothing."""
        _core.module_load(self._handle, path, prefix, convert)

    def save(self, path: str | os.PathLike[str], prefix: str = "") -> None:
        """Saves every parameter to a safetensors file."""
        _core.module_save(self._handle, path, prefix)

    def new_tape(self, like: Any) -> Any:
        """Memory in which a forward keeps what its backward needs, from the framework of `like`."""
        return empty(like, (self.tape_bytes + _ALIGN,), "uint8")

    def forward(self, x: Any, memory: Any = None, *, tape: Any = None, seed: Any = None, out: Any = None,
                stream: int | None = None) -> Any:
        """Applies the layer to x [batch, seq, width], and to memory if the layer attends to a second input. tape: from
        new_tape, for a backward. seed: two i64, for dropout and noise=gumbel; None: no dropout and no noise."""
        if out is None:
            out = empty(x, shape_of("x", x))
        _core.module_run(self._handle, False, False, stream_of(x) if stream is None else stream, x, memory, out, None,
                         None, None, seed, tape)
        return out

    def backward(self, d_out: Any, x: Any, tape: Any, memory: Any = None, *, add: bool = False, seed: Any = None,
                 stream: int | None = None) -> tuple[Any, Any]:
        """(dx, d_memory) of the forward that wrote the tape. Parameter gradients are overwritten, or with add
        accumulated."""
        dx = empty(x, shape_of("x", x))
        d_memory = None if memory is None else empty(memory, shape_of("memory", memory))
        _core.module_run(self._handle, True, add, stream_of(x) if stream is None else stream, x, memory, None, d_out,
                         dx, d_memory, seed, tape)
        return dx, d_memory


@dataclasses.dataclass(frozen=True)
class Choice:
    """The result of choose: a module line, or a problem line with the pattern of its block lists."""

    name: str
    is_module: bool
    line: str
    pattern: str
    why: str


def make(name: str, *, dtype: Any = "float32", batch: int = 1, len: int = 0, heads: int = 0, heads_kv: int = 0,
         dim: int = 0, dim_v: int = 0, embed: int = 0, causal: bool = False, backward: bool = False, ranks: int = 1,
         block: int = 0, density: float = 0.0, device: Any = "cpu", segments: str | None = None,
         rates: str | None = None, pattern: str | None = None, nsa: str | None = None) -> Choice:
    """The factory: "dilated", "longnet", "block_sparse", "nsa", "multihead_dilated", "auto", ...; docs/modules.md lists
    every name. Sizes that are not given have the factory's defaults."""
    texts = (segments, rates, pattern, nsa)
    for what, size in (("batch", batch), ("len", len), ("heads", heads), ("heads_kv", heads_kv), ("dim", dim),
                       ("dim_v", dim_v), ("embed", embed), ("ranks", ranks), ("block", block)):
        check_whole(what, size)
    got, is_module, *rest = _core.choose(name, dtype_number(dtype), batch, len, heads, heads_kv, dim, dim_v, embed,
                                         int(causal), int(backward), ranks, block, density, str(device), *texts)
    return Choice(got, bool(is_module), *rest)
