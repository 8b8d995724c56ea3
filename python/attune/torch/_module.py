# SPDX-License-Identifier: Apache-2.0
"""Layers of the library as torch.nn.Module. Parameters are views of library memory, so optimizers, state_dict and
initializers work in place. Eager calls go straight to the library. Calls that compilers and dispatch modes see are one
operator, attune::module_forward: an operator with a dozen tensors costs some hundred us more."""

from __future__ import annotations

import copy
import itertools
import os
import re
import threading
import weakref
from typing import Any, Callable, Sequence

import torch
from torch import Tensor

from .. import _core
from .._module import Module as Layer
from .._spec import WARN
from ._attend import _AUTOCASTS, is_plain, reproducible
from ._limits import check_devices, once, refuse_layouts, refuse_unseen, warn_of_order
from ._sdpa import new_seed

_here: weakref.WeakValueDictionary[int, Module] = weakref.WeakValueDictionary()  # by number, for compiled graphs
_numbers = itertools.count()
_DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_OWN = ("_layer", "_sized", "_captured", "_views", "_gradients", "_written", "_places", "_folders", "_backwards",
        "_sizes", "_number")  # not copied
_SIZES, _TOKENS, _LEAST = 32, 2**18, 4  # cached sizes, their tokens in total, and the minimum kept regardless


def _device(device: Any) -> torch.device:
    found = torch.device("cpu" if device is None else device)
    if found.type == "cuda" and found.index is None:
        found = torch.device("cuda", torch.cuda.current_device())
    return found


def _with_sizes(text: str, batch: int, length: int, memory: int | None, reproducible: bool) -> str:
    """The line of the same layer for other sizes."""
    head, *rest = text.split(" | ")
    head = re.sub(r" s\d+", f" s{length}", re.sub(r" b\d+", f" b{batch}", head, count=1), count=1)
    head = re.sub(r" memory=\d+", "", head)
    if memory is not None:
        head += f" memory={memory}"
    if reproducible and rest and "repro=" not in rest[0]:
        problem, colon, variant = rest[0].partition(" : ")
        problem, precision, kind = problem.partition(" precision=")
        rest[0] = f"{problem} repro=run{precision}{kind}{colon}{variant}"
    return " | ".join((head, *rest))


class Module(torch.nn.Module):
    """A layer described by one line of text (docs/modules.md), as a torch.nn.Module with gradients:

        layer = attune.torch.Module("llama bf16 b1 s4096 e4096 h32/8 ffn=14336 | causal", "cuda")
        layer = attune.torch.Module(attune.make("multihead_nsa", len=4096, heads=64, heads_kv=4, causal=True).line)

    x is [batch, seq, width] with any batch and length that the line's variant supports; the line's own sizes are only
    initial. Dropout and noise=gumbel are drawn only in training, from PyTorch's generator: after eval() the layer
    behaves as without them. Names in state_dict() are those of safetensors files: load and save. Parameters stay in
    place; anything that replaces them (functional_call, parametrizations, sharding) is refused. A ring uses the group
    of attune.torch.distributed. With torch.use_deterministic_algorithms the attention is reproducible; with its
    warn_only, a layer without such attention runs with a warning.
    """

    def __init__(self, text: str, device: Any = None) -> None:
        super().__init__()
        self._make(text, _device(device))
        for name in self._layer.names:
            at: torch.nn.Module = self
            *folders, last = name.split(".")
            for folder in folders:
                if folder not in at._modules:
                    at.add_module(folder, torch.nn.Module())
                at = at.get_submodule(folder)
            at.register_parameter(last, torch.nn.Parameter(self._view(name)))
        self._index()

    def _index(self) -> None:
        """Indexes its own parameters, next to which the caller may have added others."""
        own = set(self._layer.names)
        self._names = tuple(name for name, _ in self.named_parameters() if name in own)
        self._places = [(self.get_submodule(name.rpartition(".")[0])._parameters, name.rpartition(".")[2])
                        for name in self._names]
        self._folders = [(self.get_submodule(name.rpartition(".")[0])._modules, name.rpartition(".")[2], folder)
                         for name, folder in self.named_modules() if any(n.startswith(name + ".") for n in own)]
        self._backwards = threading.Lock()  # all backwards write the same gradient memory
        self._sizes = threading.Lock()
        self._number = next(_numbers)
        _here[self._number] = self

    def _make(self, text: str, device: torch.device) -> None:
        self._layer, self._device = Layer(text, device), device  # a refusal leaves everything unchanged
        self._sized: dict[Any, Layer] = {}  # most recently used last
        self._captured: dict[Any, Layer] = {}  # graphs read their tables permanently
        self._written: Any = None  # CUDA: event after the last backward wrote gradients, and its stream
        self._views: dict[str, Tensor] = {}
        self._gradients: list[Tensor] = []
        self._dtype = {word: dtype for dtype, word in _DTYPES.items()}[self._layer.text.split()[1]]
        self._draws = bool(re.search(r"\b(dropout|noise=gumbel)\b", self._layer.text))

    def _view(self, name: str) -> Tensor:
        """The library's memory of a parameter."""
        if name not in self._views:
            self._views[name] = torch.from_dlpack(self._layer.parameter(name))
        return self._views[name]

    @property
    def text(self) -> str:
        """The layer's line, in canonical spelling."""
        return self._layer.text

    @property
    def why(self) -> str:
        """The backends of its attention, and why they were chosen."""
        return self._layer.why

    def extra_repr(self) -> str:
        return self.text

    def load(self, path: str | os.PathLike[str], prefix: str = "", convert: bool = False) -> None:
        """attune.Module.load: loads every parameter from a safetensors file."""
        self._wait()
        self._layer.load(path, prefix, convert)
        for parameter in self.parameters():
            torch.autograd.graph.increment_version(parameter)

    def save(self, path: str | os.PathLike[str], prefix: str = "") -> None:
        """attune.Module.save: saves every parameter to a safetensors file."""
        self._wait()
        self._layer.save(path, prefix)

    def _wait(self) -> None:
        """Waits for the GPU, because the host reads and writes files."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """Applies the layer to x [batch, seq, width], and to memory if the layer attends to a second input. Dropout and
        noise are drawn only in training."""
        if x.device.type in _AUTOCASTS and torch.is_autocast_enabled(x.device.type):
            x = x.to(self._dtype)
            memory = None if memory is None else memory.to(self._dtype)
        seed = new_seed(x.device) if self._draws and self.training else None
        plain = is_plain(x, x, x if memory is None else memory)
        parameters = self._now() if plain else [p for name, p in self.named_parameters() if name in self._names]
        needs = torch.is_grad_enabled() and (x.requires_grad or (memory is not None and memory.requires_grad) or
                                             any(p.requires_grad for p in parameters))
        if not plain:
            if not torch.compiler.is_compiling():
                refuse_unseen()
            return _forward(x, memory, seed, parameters, self._number, needs)[0]
        self._check(parameters)
        if needs:
            return _apply_layer(self, x, memory, seed, *parameters)
        return self.sized(x, memory).forward(_compact(x), _whole(memory), seed=seed)

    def _now(self) -> list[Tensor]:
        """The current parameters, without a walk over modules."""
        found = [folder.get(name) for folder, name in self._places]
        if any(p is None for p in found) or any(at.get(name) is not folder for at, name, folder in self._folders):
            raise _core.Error(f"attune: parameters of the module are gone: it has {', '.join(self._names)}")
        return found  # type: ignore[return-value]

    def _check(self, parameters: Sequence[Tensor]) -> None:
        """Refuses parameters that are not library memory."""
        for name, given in zip(self._names, parameters):
            if given.data_ptr() != self._view(name).data_ptr():
                raise _core.Error(f"attune: parameter {name} is not the module's own any more: change it in place")

    def gradients(self, layer: Layer, d_out: Tensor, x: Tensor, tape: Tensor, memory: Tensor | None,
                  seed: Tensor | None, parameters: Sequence[Tensor], wanted: Sequence[bool]) -> Any:
        """dx, d_memory and parameter gradients, in separate tensors."""
        with self._backwards:
            captured = not x.is_cuda or torch.cuda.is_current_stream_capturing()
            stream = None if captured else torch.cuda.current_stream(x.device)
            if stream is not None and self._written is not None and self._written[1] != stream:
                stream.wait_event(self._written[0])
            dx, d_memory = layer.backward(_compact(d_out), x, tape, memory, seed=seed)
            if not self._gradients:
                self._gradients = [torch.from_dlpack(self._layer.gradient(name)) for name in self._names]
            gradients = [g.to(p.dtype, copy=True) if w else None
                         for g, p, w in zip(self._gradients, parameters, wanted)]
            if stream is not None:
                event = self._written[0] if self._written else torch.cuda.Event()
                event.record(stream)
                self._written = event, stream
            return dx, d_memory, gradients

    def sized(self, x: Tensor, memory: Tensor | None) -> Layer:
        """The layer for the sizes of x, with the parameters of this one."""
        for name, t in (("x", x), ("memory", memory)):
            if t is not None and t.layout is not torch.strided:
                refuse_layouts((name,), (t,))
            if t is not None and t.dim() != 3:
                raise _core.Error(f"attune: {name} is [batch, seq, width], and has {t.dim()} axes")
        if memory is None and " memory=" in self._layer.text.partition(" | ")[0]:
            raise _core.Error("attune: memory is not given, and the layer attends to it")
        key = (int(x.shape[0]), int(x.shape[1]), None if memory is None else int(memory.shape[1]),
               reproducible())
        if found := self._captured.get(key):
            return found
        with self._sizes:
            found = self._sized.pop(key, None)
            if found is None:
                found = self._new(*key)
            if self._device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                self._captured[key] = found
            else:
                self._sized[key] = found
                self._forget()
        return found

    def _new(self, batch: int, length: int, memory: int | None, order: str) -> Layer:
        try:
            text = _with_sizes(self._layer.text, batch, length, memory, order != "no")
            return Layer(text, self._device, shares=self._layer)
        except _core.Error as refusal:
            if order != WARN:
                raise
            found = self._new(batch, length, memory, "no")
            warn_of_order(refusal)
            return found

    def _forget(self) -> None:
        """Evicts the least recently used sizes, each of which has its own tables. A pending backward keeps its layer.
        """
        tokens = sum(key[1] for key in self._sized)
        waited = self._device.type != "cuda"
        while len(self._sized) > _SIZES or (len(self._sized) > _LEAST and tokens > _TOKENS):
            if not waited:
                torch.cuda.synchronize(self._device)
                waited = True
            oldest = next(iter(self._sized))
            tokens -= oldest[1]
            del self._sized[oldest]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Module:
        probe = torch.empty(0, dtype=self._dtype, device=self._device)
        wanted = fn(probe)
        if probe.device.type == "cpu" and probe.is_shared():
            raise _core.Error("attune: a module's memory is not shared with other processes")
        if (wanted.dtype, wanted.device) != (probe.dtype, probe.device):
            if wanted.dtype not in _DTYPES or wanted.device.type not in ("cpu", "cuda"):
                raise _core.Error(f"attune: a module is not made of {wanted.dtype} on {wanted.device}")
            parameters, words = self._now(), self.text.split(" ", 2)
            self._make(f"{words[0]} {_DTYPES[wanted.dtype]} {words[2]}", wanted.device)
            self._settle(parameters)
        own = (self, *(folder for *_, folder in self._folders))
        for folder in own:  # what the caller added
            for child in folder._modules.values():
                if child is not None and not any(child is one for one in own):
                    child._apply(fn)
            for name, buffer in folder._buffers.items():
                folder._buffers[name] = None if buffer is None else fn(buffer)
        return self

    def _settle(self, parameters: Sequence[Tensor]) -> None:
        """Copies the parameters into library memory."""
        with torch.no_grad():
            for name, parameter in zip(self._names, parameters):
                self._view(name).copy_(parameter.data)
                parameter.data = self._view(name)
                if parameter.grad is not None:
                    parameter.grad = parameter.grad.to(parameter)

    # Pickles and deep copies hold everything except library objects, which are recreated.
    def __getstate__(self) -> dict[str, Any]:
        return {"_text": self.text, **{name: value for name, value in self.__dict__.items() if name not in _OWN}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        text = state.pop("_text")
        super().__setstate__(state)
        parameters = [self.get_parameter(name) for name in self._names]
        self._make(text, parameters[0].device)
        self._settle(parameters)
        self._index()

    def __copy__(self) -> Module:
        return copy.deepcopy(self)  # copies that share parameters would share library memory


def _compact(t: Tensor) -> Tensor:
    """Contiguous, with values in memory as they are read: a view may be negated."""
    return t.contiguous().resolve_neg()


def _whole(t: Tensor | None) -> Tensor | None:
    return None if t is None else _compact(t)


class _ApplyLayer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, module: Module, x: Tensor, memory: Tensor | None, seed: Tensor | None,
                *parameters: Tensor) -> Any:
        layer = module.sized(x, memory)
        x, memory, tape = _compact(x), _whole(memory), layer.new_tape(x)
        ctx.module = module, layer
        ctx.save_for_backward(x, memory, seed, tape, *parameters)
        return layer.forward(x, memory, tape=tape, seed=seed)

    @staticmethod
    @once
    def backward(ctx: Any, kept: Any, d_out: Tensor) -> Any:
        module, layer = ctx.module
        x, memory, seed, tape, *parameters = kept
        dx, d_memory, gradients = module.gradients(layer, d_out, x, tape, memory, seed, parameters,
                                                   ctx.needs_input_grad[4:])
        return None, dx, d_memory, None, *gradients


_apply_layer = super(torch.autograd.Function, _ApplyLayer).apply  # without functorch support, as in _attend


def _found(number: int, parameters: Sequence[Tensor]) -> Module:
    module = _here[number]
    module._check(parameters)
    return module


@torch.library.custom_op("attune::module_forward", mutates_args=(), schema=(
    "(Tensor x, Tensor? memory, Tensor? seed, Tensor[] parameters, SymInt number, bool needs_tape) "
    "-> (Tensor, Tensor)"))
def _forward(x: Tensor, memory: Tensor | None, seed: Tensor | None, parameters: Sequence[Tensor], number: int,
             needs_tape: bool) -> tuple[Tensor, Tensor]:
    layer = _found(number, parameters).sized(x, memory)
    tape = layer.new_tape(x) if needs_tape else x.new_empty(0, dtype=torch.uint8)
    return layer.forward(_compact(x), _whole(memory), tape=tape if needs_tape else None, seed=seed), tape


@_forward.register_fake
def _(x: Tensor, memory: Tensor | None, seed: Tensor | None, parameters: Sequence[Tensor], number: int,
      needs_tape: bool) -> Any:
    module = _here[number]
    check_devices(("x", "memory", "seed", *module._names), (x, memory, seed, *parameters))
    layer = module.sized(x, memory)
    tape = layer.new_tape(x) if needs_tape else x.new_empty(0, dtype=torch.uint8)
    return torch.empty_like(x, memory_format=torch.contiguous_format), tape


@torch.library.custom_op("attune::module_backward", mutates_args=(), schema=(
    "(Tensor d_out, Tensor x, Tensor? memory, Tensor? seed, Tensor tape, Tensor[] parameters, SymInt number) "
    "-> (Tensor, Tensor, Tensor[])"))
def _backward(d_out: Tensor, x: Tensor, memory: Tensor | None, seed: Tensor | None, tape: Tensor,
              parameters: Sequence[Tensor], number: int) -> tuple[Tensor, Tensor, list[Tensor]]:
    module = _found(number, parameters)
    dx, d_memory, gradients = module.gradients(module.sized(x, memory), d_out, _compact(x), tape, _whole(memory),
                                               seed, parameters, [True] * len(parameters))
    return dx, x.new_empty(0) if d_memory is None else d_memory, gradients


@_backward.register_fake
def _(d_out: Tensor, x: Tensor, memory: Tensor | None, seed: Tensor | None, tape: Tensor,
      parameters: Sequence[Tensor], number: int) -> Any:
    whole = torch.contiguous_format
    return (torch.empty_like(x, memory_format=whole),
            x.new_empty(0) if memory is None else torch.empty_like(memory, memory_format=whole),
            [torch.empty_like(p, memory_format=whole) for p in parameters])


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    x, memory, seed, parameters, ctx.number, _ = inputs
    ctx.save_for_backward(x, memory, seed, output[1], *parameters)


def _gradients(ctx: Any, d_out: Tensor, _: Any) -> Any:
    x, memory, seed, tape, *parameters = ctx.saved_tensors
    dx, d_memory, gradients = _backward(d_out, x, memory, seed, tape, parameters, ctx.number)
    return dx, None if memory is None else d_memory, None, gradients, None, None


_forward.register_autograd(_gradients, setup_context=_keep)
