"""attune for PyTorch: attend with gradients, a scaled_dot_product_attention, and a way to put it in PyTorch's place."""

from ._attend import attend
from ._module import Module
from ._sdpa import counters, install, installed, scaled_dot_product_attention, uninstall

__all__ = ["Module", "attend", "counters", "install", "installed", "scaled_dot_product_attention", "uninstall"]
