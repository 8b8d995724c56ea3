# SPDX-License-Identifier: Apache-2.0
"""flash_attn.flash_attn_interface, an alternative import path for the functions of flash_attn."""

from __future__ import annotations

from . import _get_block_size_n  # noqa: F401  by which public tests read return_attn_probs
from . import (flash_attn_func, flash_attn_kvpacked_func, flash_attn_qkvpacked_func, flash_attn_varlen_func,
               flash_attn_varlen_kvpacked_func, flash_attn_varlen_qkvpacked_func, flash_attn_with_kvcache)

__all__ = ["flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
           "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache"]

USE_TRITON_ROCM = False  # AMD only; checked by public tests
