# SPDX-License-Identifier: Apache-2.0
"""Attention, tuned to your machine: attend(q, k, v) over tensors of any framework, without copies.

    import attune
    out = attune.attend(q, k, v, layout="bshd", causal=True)      # NumPy, PyTorch, CuPy: CPU or CUDA

attune.torch has autograd, torch.compile and a scaled_dot_product_attention; attune.flash_attn the functions of
flash_attn; attune.transformers registers an attention for Hugging Face models; attune.jax is for JAX."""

from __future__ import annotations

import dataclasses
import os

from . import _core
from ._attend import attend, attend_backward, check
from ._blocks import Blocks, blocks
from ._cache import Cache, NsaCache
from ._core import Error, set_threads, threads, version
from ._module import Choice, Module, make
from ._spec import Options
from ._view import View

__version__ = version()
__all__ = ["Blocks", "Cache", "Choice", "Error", "Module", "NsaCache", "Options", "Plan", "View", "attend",
           "attend_backward", "blocks", "check", "make", "plan", "set_threads", "threads", "version"]


def _heed_openmp() -> None:
    """As many threads as OMP_NUM_THREADS says, which launchers such as torchrun set for each of their processes."""
    said = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    if said.isascii() and said.isdigit() and len(said) < 10 and 0 < int(said) < threads():
        set_threads(int(said))


_heed_openmp()


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of a problem: the backend, its workspace in bytes, and why it was chosen."""

    backend: str
    workspace: int
    why: str


def plan(line: str, device: str | None = None, backend: str | None = None) -> Plan:
    """Plans a problem line ("forward bf16 b2 h32/8 q4096 k4096 d128 causal"), as `attune plan` does. The device ("cpu",
    "cuda:0", "h200") need not be present."""
    return Plan(*_core.plan(line, device, backend))
