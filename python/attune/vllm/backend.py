# SPDX-License-Identifier: Apache-2.0
"""The classes that vLLM asks of an attention backend (vLLM from 0.26 on).

A layer's cache is [block, KV head, row, 2 * dim] with keys before values; a block is a page. The tokens of a step are
packed, and one call serves prefill, chunks and decode together. Lengths, tables and slots are read from device memory,
so a captured step serves later lengths: graphs are supported always."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.v1.attention.backend import (AttentionBackend, AttentionCGSupport, AttentionImpl, AttentionMetadata,
                                       AttentionMetadataBuilder, AttentionType, CommonAttentionMetadata)

from .. import _core
from .._spec import TENSORS, Spec, scale_of, spec_of
from ..torch._attend import call, is_plain
from ..torch._slots import write_slots

__all__ = ["AttuneBackend", "AttuneImpl", "AttuneMetadata", "AttuneMetadataBuilder"]

_WIDEST = 256  # largest dim of heads on a GPU
_ENCODERS = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)


def _refuse(what: str) -> _core.Error:
    return _core.Error(f"attune.vllm: {what}")


@dataclasses.dataclass
class AttuneMetadata(AttentionMetadata):
    """A step: tensors of vLLM in device memory, and bounds on the host."""

    num_actual_tokens: int
    query_start_loc: Tensor   # [request + 1] i32
    seq_lens: Tensor          # [request] i32
    block_table: Tensor       # [request, block] i32
    slot_mapping: Tensor      # [token] i64
    causal: bool
    lengths: tuple[int, int]  # bounds of the lengths of queries and keys


class AttuneMetadataBuilder(AttentionMetadataBuilder[AttuneMetadata]):
    """Makes the metadata of a step. It copies nothing and waits for nothing."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.ALWAYS
    supports_update_block_table: bool = True

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata,
              fast_build: bool = False) -> AttuneMetadata:
        """common_prefix_len is not used: requests that share pages read them by their own tables."""
        step = common_attn_metadata
        if isinstance(step.causal, torch.Tensor):
            raise _refuse("requests of one step with and without a causal mask are not served together")
        for name in ("mm_req_doc_ranges", "rswa_prefix_lens", "dcp_local_seq_lens"):
            if getattr(step, name, None) is not None:
                raise _refuse(f"{name} changes which keys a query sees, and attune does not serve it")
        # Rows of q behind num_actual_tokens, and requests behind the last one, are those of a padded batch.
        return AttuneMetadata(step.num_actual_tokens, step.query_start_loc, step.seq_lens, step.block_table_tensor,
                              step.slot_mapping, bool(step.causal), (max(step.max_query_len, 1),
                                                                     max(step.max_seq_len, 1)))

    def update_block_table(self, metadata: AttuneMetadata, blk_table: Tensor, slot_mapping: Tensor) -> AttuneMetadata:
        """The same step for layers with other blocks."""
        return dataclasses.replace(metadata, block_table=blk_table, slot_mapping=slot_mapping)

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> AttuneMetadata:
        """A capture runs the kernels once: with one key a request it is quick, and bounds stay those of the graph."""
        metadata = self.build(0, common_attn_metadata)
        metadata.seq_lens.fill_(1)
        return metadata


class AttuneBackend(AttentionBackend):
    """What vLLM asks when it selects a backend."""

    accept_output_buffer: bool = True
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "float16", "bfloat16"]
    forward_includes_kv_cache_update: bool = False

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"  # vLLM looks a backend's name up in its registry

    @staticmethod
    def get_impl_cls() -> type[AttuneImpl]:
        return AttuneImpl

    @staticmethod
    def get_builder_cls() -> type[AttuneMetadataBuilder]:
        return AttuneMetadataBuilder

    @staticmethod
    def get_kv_cache_shape(num_blocks: int, block_size: int, num_kv_heads: int, head_size: int,
                           cache_dtype_str: str = "auto") -> tuple[int, ...]:
        """[block, KV head, row, keys and values], as in vLLM's own backends since 0.26."""
        return num_blocks, num_kv_heads, block_size, 2 * head_size

    @classmethod
    def supports_head_size(cls, head_size: int) -> bool:
        return head_size % 8 == 0 and head_size <= _WIDEST

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type in (AttentionType.DECODER, *_ENCODERS)

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return True


def _is_batch_invariant() -> bool:
    from vllm import envs

    return bool(getattr(envs, "VLLM_BATCH_INVARIANT", False))


def _writer() -> Any:
    """vLLM's kernel that writes a layer's keys and values by slots, where it is compiled."""
    try:
        from vllm._custom_ops import reshape_and_cache_flash
    except ImportError:
        return None
    return reshape_and_cache_flash


class AttuneImpl(AttentionImpl[AttuneMetadata]):
    """Attention of one layer."""

    supports_dcp: bool = False

    def __init__(self, num_heads: int, head_size: int, scale: float, num_kv_heads: int | None = None,
                 alibi_slopes: list[float] | None = None, sliding_window: int | None = None,
                 kv_cache_dtype: str = "auto", logits_soft_cap: float | None = None,
                 attn_type: str = AttentionType.DECODER, kv_sharing_target_layer_name: str | None = None,
                 sinks: Tensor | None = None, **others: Any) -> None:
        for name, value in others.items():
            if value is not None and value is not False and value != -1:
                raise _refuse(f"{name} is {value!r}, which attune does not serve")
        if kv_cache_dtype not in AttuneBackend.supported_kv_cache_dtypes:
            raise _refuse(f"kv_cache_dtype {kv_cache_dtype!r} is not one of "
                          f"{', '.join(AttuneBackend.supported_kv_cache_dtypes)}")
        if not AttuneBackend.supports_attn_type(attn_type):
            raise _refuse(f"attention of type {attn_type!r} is not served; served are decoder, encoder and "
                          "encoder_only")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kv_cache_dtype, self.attn_type = kv_cache_dtype, attn_type
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks
        self._sinks: Tensor | None = None
        self.alibi_slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        self.logits_soft_cap = float(logits_soft_cap or 0.0)
        self.sliding_window = sliding_window
        self._encodes = attn_type in _ENCODERS
        self._numbers = (scale_of(self.scale), self.logits_soft_cap, 0.0)
        given = {"cu_q": True, "cu_k": self._encodes, "used_k": not self._encodes, "page_table": not self._encodes,
                 "slopes": alibi_slopes is not None, "sinks": sinks is not None}
        self._given = tuple(name for name in TENSORS if given.get(name))
        self._batch_invariant = _is_batch_invariant()
        self._specs = [self._spec(causal) for causal in (False, True)]
        self._bound: Tensor | None = None
        self._pages: tuple[Tensor, Tensor] | None = None

    def _spec(self, causal: bool) -> Spec:
        before = self.sliding_window - 1 if self.sliding_window else -1
        window = None if before < 0 else (before, 0 if causal else before)  # without a causal mask to both sides
        return spec_of(layout="thd", causal=causal, window=window, softcap=self.logits_soft_cap != 0,
                       reproducible="batch" if self._batch_invariant else "no", given=self._given)

    def _cache(self, kv_cache: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [block, row, KV head, dim], views. A layer has one cache, so they are made once."""
        if kv_cache is not self._bound or self._pages is None:
            if kv_cache.dim() != 4 or kv_cache.shape[-1] != 2 * self.head_size:
                raise _refuse(f"the cache is {list(kv_cache.shape)}; accepted is [block, {self.num_kv_heads}, row, "
                              f"{2 * self.head_size}]")
            k, v = kv_cache.transpose(1, 2).split(self.head_size, -1)
            self._bound, self._pages = kv_cache, (k, v)
        return self._pages

    def do_kv_cache_update(self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor,
                           slot_mapping: Tensor) -> None:
        """Writes key and value [token, KV head, dim] at slot_mapping [token]: block * rows + row; -1: not written."""
        if self._encodes:
            return
        k, v = self._cache(kv_cache)
        write = _writer() if key.is_cuda else None
        if write is not None:  # one kernel
            write(key, value, k, v, slot_mapping, self.kv_cache_dtype, layer._k_scale, layer._v_scale)
        else:
            write_slots(key, value, k, v, slot_mapping)

    def process_weights_after_loading(self, act_dtype: torch.dtype) -> None:
        """Sinks are weights of the model; the library reads them in f32."""
        if self.sinks is not None:
            self._sinks = self.sinks.detach().float()

    def _tensors(self, step: AttuneMetadata) -> list[Tensor | None]:
        device = step.query_start_loc.device
        if self.alibi_slopes is not None and self.alibi_slopes.device != device:
            self.alibi_slopes = self.alibi_slopes.to(device)
        sinks = self.sinks.float() if self.sinks is not None and self._sinks is None else self._sinks
        by_name = {"cu_q": step.query_start_loc, "cu_k": step.query_start_loc, "used_k": step.seq_lens,
                   "page_table": step.block_table, "slopes": self.alibi_slopes, "sinks": sinks}
        return [by_name[name] for name in self._given]

    def forward(self, layer: Any, query: Tensor, key: Tensor, value: Tensor, kv_cache: Tensor,
                attn_metadata: AttuneMetadata | None, output: Tensor, output_scale: Tensor | None = None,
                output_block_scale: Tensor | None = None) -> Tensor:
        """Writes output [token, head, dim], or [token, head * dim], of query [token, head, dim]. The keys are in the
        cache already. Tokens behind those of the step are left as they are."""
        if output_scale is not None or output_block_scale is not None:
            raise _refuse("a quantized output is not served")
        if attn_metadata is None:  # vLLM measures its memory
            return output.fill_(0)
        step = attn_metadata
        count, causal = step.num_actual_tokens, step.causal and not self._encodes
        q, out = query[:count], output.view(-1, self.num_heads, self.head_size)[:count]
        if self._encodes:
            k, v, most_k = key[:count], value[:count], step.lengths[0]
        else:
            k, v = self._cache(kv_cache)
            most_k = min(step.lengths[1], step.block_table.shape[1] * k.shape[1])
        spec, lengths = self._specs[causal], (step.lengths[0], most_k)
        if is_plain(q, k, v):
            _core.run(spec.forward, *self._numbers, *lengths, None, q, k, v, *self._tensors(step), out, None)
        else:
            out.copy_(call(spec, q, k, v, self._tensors(step), self._numbers, lengths, False))
        return output
