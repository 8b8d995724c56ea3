# SPDX-License-Identifier: Apache-2.0
"""The attention of FlashInfer: its wrapper classes with plan() and run(), its functions of one request, states that
join, and appends to pages, with their signatures and meaning, implemented by attune on CUDA and on the CPU.

    from attune import flashinfer                       # was: import flashinfer
    attune.flashinfer.install()                         # or: `import flashinfer` is attune, in this process"""

from __future__ import annotations

from ._alias import install, uninstall
from .cascade import MultiLevelCascadeAttentionWrapper, merge_state, merge_state_in_place, merge_states
from .decode import (BatchDecodeWithPagedKVCacheWrapper, CUDAGraphBatchDecodeWithPagedKVCacheWrapper, fast_decode_plan,
                     single_decode_with_kv_cache)
from .page import append_paged_kv_cache, get_batch_indices_positions, get_seq_lens
from .prefill import (BatchPrefillWithPagedKVCacheWrapper, BatchPrefillWithRaggedKVCacheWrapper,
                      single_prefill_with_kv_cache)
from .quantization import packbits, segment_packbits

__all__ = ["BatchDecodeWithPagedKVCacheWrapper", "BatchPrefillWithPagedKVCacheWrapper",
           "BatchPrefillWithRaggedKVCacheWrapper", "CUDAGraphBatchDecodeWithPagedKVCacheWrapper",
           "MultiLevelCascadeAttentionWrapper", "append_paged_kv_cache", "fast_decode_plan",
           "get_batch_indices_positions", "get_seq_lens", "install", "merge_state", "merge_state_in_place",
           "merge_states", "packbits", "segment_packbits", "single_decode_with_kv_cache",
           "single_prefill_with_kv_cache", "uninstall"]
