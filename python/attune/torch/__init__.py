# SPDX-License-Identifier: Apache-2.0
"""attune for PyTorch: attend with gradients, scaled_dot_product_attention, and functions to install it in PyTorch."""

import torch as _torch

if tuple(int(n) for n in _torch.__version__.split(".")[:2]) < (2, 5):  # its SDPA lacks enable_gqa
    raise ImportError(f"attune.torch: PyTorch {_torch.__version__} is here, and 2.5 or later is needed")

from ._attend import attend
from ._module import Module
from ._route import install, installed, uninstall
from ._sdpa import counters, scaled_dot_product_attention
from . import _flops  # after the operators that it counts

__all__ = ["Module", "attend", "counters", "install", "installed", "scaled_dot_product_attention", "uninstall"]
