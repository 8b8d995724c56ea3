# SPDX-License-Identifier: Apache-2.0
"""The part of vLLM's interface that attune.vllm uses, for machines without vLLM: modules under vLLM's names with the
classes of an attention backend, their fields and abstract methods, and the registry. Nothing here computes."""

from __future__ import annotations

import abc
import dataclasses
import enum
import importlib
import sys
import types
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")


class AttentionType(str, enum.Enum):
    DECODER = "decoder"
    ENCODER = "encoder"
    ENCODER_ONLY = "encoder_only"
    ENCODER_DECODER = "encoder_decoder"


class AttentionCGSupport(enum.Enum):
    ALWAYS = 3
    UNIFORM_BATCH = 2
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    NEVER = 0


class AttentionMetadata:
    pass


@dataclasses.dataclass
class CommonAttentionMetadata:
    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    seq_lens: torch.Tensor
    num_reqs: int
    num_actual_tokens: int
    max_query_len: int
    max_seq_len: int
    block_table_tensor: torch.Tensor
    slot_mapping: torch.Tensor
    causal: Any = True
    dcp_local_seq_lens: Any = None
    mm_req_doc_ranges: Any = None
    rswa_prefix_lens: Any = None


class AttentionBackend(abc.ABC):
    supported_dtypes = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes = ["auto", "float16", "bfloat16"]
    forward_includes_kv_cache_update = True

    @staticmethod
    @abc.abstractmethod
    def get_name(): ...

    @staticmethod
    @abc.abstractmethod
    def get_impl_cls(): ...

    @staticmethod
    @abc.abstractmethod
    def get_builder_cls(): ...

    @staticmethod
    @abc.abstractmethod
    def get_kv_cache_shape(num_blocks, block_size, num_kv_heads, head_size, cache_dtype_str="auto"): ...


class AttentionMetadataBuilder(abc.ABC, Generic[T]):
    _cudagraph_support = AttentionCGSupport.NEVER
    supports_update_block_table = False

    @abc.abstractmethod
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        self.kv_cache_spec, self.layer_names = kv_cache_spec, layer_names
        self.vllm_config, self.device = vllm_config, device

    @classmethod
    def get_cudagraph_support(cls, vllm_config, kv_cache_spec):
        return cls._cudagraph_support

    @abc.abstractmethod
    def build(self, common_prefix_len, common_attn_metadata, fast_build=False): ...


class AttentionImpl(abc.ABC, Generic[T]):
    supports_dcp = True

    @abc.abstractmethod
    def __init__(self, num_heads, head_size, scale, num_kv_heads=None, alibi_slopes=None, sliding_window=None,
                 kv_cache_dtype="auto", logits_soft_cap=None, attn_type=AttentionType.DECODER,
                 kv_sharing_target_layer_name=None): ...

    @abc.abstractmethod
    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None,
                output_block_scale=None): ...


_paths: dict[Any, str] = {}


class AttentionBackendEnum(enum.Enum):
    CUSTOM = None

    def get_path(self):
        return _paths[self]

    def is_overridden(self):
        return self in _paths

    def clear_override(self):
        _paths.pop(self, None)

    def get_class(self):
        module, _, name = self.get_path().rpartition(".")
        return getattr(importlib.import_module(module), name)


def register_backend(backend, class_path=None, is_mamba=False):
    _paths[backend] = class_path
    return lambda made: made


def install():
    """Puts the stand-in where vLLM would be."""
    names = ("vllm", "vllm.envs", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backend",
             "vllm.v1.attention.backends", "vllm.v1.attention.backends.registry")
    made = {name: types.ModuleType(name) for name in names}
    for name, module in made.items():
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(made[parent], own, module)
    made["vllm.envs"].VLLM_BATCH_INVARIANT = False
    for found in (AttentionBackend, AttentionCGSupport, AttentionImpl, AttentionMetadata, AttentionMetadataBuilder,
                  AttentionType, CommonAttentionMetadata):
        setattr(made["vllm.v1.attention.backend"], found.__name__, found)
    for found in (AttentionBackendEnum, register_backend):
        setattr(made["vllm.v1.attention.backends.registry"], found.__name__, found)
    sys.modules.update(made)
