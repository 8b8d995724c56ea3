"""attune for PyTorch: attend with gradients, a scaled_dot_product_attention, and a way to put it in PyTorch's place."""

import torch as _torch

if tuple(int(n) for n in _torch.__version__.split(".")[:2]) < (2, 5):  # whose own SDPA has no enable_gqa
    raise ImportError(f"attune.torch: PyTorch {_torch.__version__} is here, and 2.5 or later is needed")

from ._attend import attend
from ._module import Module
from ._route import install, installed, uninstall
from ._sdpa import counters, scaled_dot_product_attention

__all__ = ["Module", "attend", "counters", "install", "installed", "scaled_dot_product_attention", "uninstall"]
