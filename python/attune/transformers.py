"""attune as an attention of Hugging Face models.

    import attune.transformers
    attune.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="attune")

Masks are those that transformers makes for "sdpa": none where the mask is plainly causal, else boolean. Logit softcap,
attention sinks and position biases are served too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._core import Error
from .torch import attend
from .torch._sdpa import added, new_seed, rows

__all__ = ["attention", "register"]


def attention(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
              dropout: float = 0.0, scaling: float | None = None, is_causal: bool | None = None,
              softcap: float | None = None, s_aux: Tensor | None = None, position_bias: Tensor | None = None,
              cache: Any = None, **kwargs: Any) -> tuple[Tensor, None]:
    """An attention function of transformers: query, key and value are [batch, head, seq, dim], and the answer is
    ([batch, seq, head, dim], None)."""
    if cache is not None:
        raise Error("attune: continuous batching of transformers has a cache of its own, which attune does not serve")
    if kwargs.get("output_attentions"):
        raise Error("attune: output_attentions needs attn_implementation='eager': weights are never stored here")
    len_q = query.shape[2]
    causal = len_q > 1 and attention_mask is None and (
        getattr(module, "is_causal", True) if is_causal is None else is_causal)
    options: dict[str, Any] = {}
    if causal and key.shape[2] > len_q:  # the first tokens of a static cache: the rest of it is still empty
        key, value = key[:, :, :len_q], value[:, :, :len_q]
        position_bias = None if position_bias is None else position_bias[..., :len_q]
    bias = None
    if attention_mask is not None:
        if attention_mask.shape[-2] not in (1, len_q):
            raise Error(f"attune: attention_mask has {attention_mask.shape[-2]} rows, and there are {len_q} queries")
        bias = added(attention_mask[..., :key.shape[2]], query.dtype)  # as "sdpa": masks may be of a longer cache
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    if bias is not None:
        options["bias"] = rows(bias)  # a sum has the strides of T5's position bias, whose heads are the last axis
    if softcap:
        options["softcap"] = softcap
    if s_aux is not None:
        options["sinks"] = s_aux.float()
    if dropout:
        options.update(dropout=dropout, seed=new_seed(query.device))
    q, k, v = (rows(t.transpose(1, 2)) for t in (query, key, value))
    return attend(q, k, v, layout="bshd", causal=causal, scale=scaling, **options).contiguous(), None


def register(name: str = "attune") -> None:
    """Makes attn_implementation=name work, in training and in generate()."""
    from transformers import AttentionInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

    AttentionInterface.register(name, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, sdpa_mask)
