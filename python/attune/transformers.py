# SPDX-License-Identifier: Apache-2.0
"""attune as an attention implementation for Hugging Face models.

    import attune.transformers
    attune.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="attune")

Supports logit softcap, attention sinks, position biases and keys selected by the model (indices, block_indices).
Unknown keywords are refused. Models that support "sdpa" get its masks: none if the mask is plainly causal, else
boolean. Others add masks to scores themselves and get those of "eager"."""

from __future__ import annotations

import functools
import sys
import warnings
from typing import Any

import torch
from torch import Tensor

from . import _continuous
from ._core import Error
from .torch import attend
from .torch._sdpa import added, new_seed, rows

__all__ = ["attention", "register"]

# Keywords that models pass besides those of attention(), without effect on the result: they are for other
# implementations, or come from a layer that forwards unknown keywords. Collected from transformers 5.23 by parsing
# (ast) every models/*/modeling_*.py that calls get_interface(): keywords of attention_interface() calls, keywords of
# layer calls with **kwargs that the attention's forward does not name, and the fields of TransformersKwargs; and by
# running small models of all architectures. No *attention_forward() in those files reads any of them except
# sliding_window, which the mask contains too. Other keywords are refused: one may be the next `indices`.
_HARMLESS = frozenset("""
    use_cache position_ids position_embeddings past_key_values past_key_value cache_params cache_position
    sliding_window cu_seq_lens_q cu_seq_lens_k max_length_q max_length_k seq_idx deterministic output_attentions
    output_hidden_states output_router_logits return_dict logits_to_keep num_items_in_batch input_ids inputs_embeds
    token_type_ids mm_token_type_ids grid_thw decoder_input_ids decoder_inputs_embeds decoder_attention_mask
    decoder_position_ids encoder_outputs
""".split())


def attention(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
              dropout: float = 0.0, scaling: float | None = None, is_causal: bool | None = None,
              softcap: float | None = None, s_aux: Tensor | None = None, position_bias: Tensor | None = None,
              cache: Any = None, sinks: Tensor | None = None, indices: Tensor | None = None,
              block_indices: Tensor | None = None, **kwargs: Any) -> tuple[Tensor, None]:
    """An attention function for transformers: query, key and value are [batch, head, seq, dim], and the result is
    ([batch, seq, head, dim], None).

    s_aux is [head], sinks [batch, head, query, 1] or [head]. indices, [batch, query, n], are the keys that a query may
    see among those that the mask shows; block_indices are blocks of them, for models that convert them to a mask.
    Keywords that are not known to be harmless are refused."""
    if kwargs.get("output_attentions"):
        raise Error("attune: output_attentions needs attn_implementation='eager': weights are never stored here")
    for name, given in kwargs.items():
        if given is not None and name not in _HARMLESS and (cache is None or name not in _continuous.NAMES):
            raise Error(f"attune.transformers: the keyword {name!r} may change which keys a query sees or how they "
                        "count, and attune does not serve it; served are softcap, s_aux, sinks, position_bias, indices "
                        "and block_indices, the rest by attn_implementation=\"eager\"")
    if cache is not None:
        for name, given in (("position_bias", position_bias), ("indices", indices), ("block_indices", block_indices),
                            ("attention_mask", attention_mask), ("dropout", dropout or None)):
            if given is not None:
                raise Error(f"attune.transformers: continuous batching with {name} is not served; use "
                            "attn_implementation=\"paged|eager\"")
        return _continuous_attention(module, query, key, value, cache, scaling, softcap, s_aux, sinks, kwargs), None
    if block_indices is not None:
        attention_mask = _of_blocks(module, query, key, attention_mask, block_indices, kwargs.get("position_ids"))
    if indices is not None:
        attention_mask = _of_keys(query, key, attention_mask, indices)
    len_q = query.shape[2]
    causal = len_q > 1 and attention_mask is None and _means_causal(module, is_causal)
    options: dict[str, Any] = {}
    if causal and key.shape[2] > len_q:  # the first tokens of a static cache, whose rest is still empty
        key, value = key[:, :, :len_q], value[:, :, :len_q]
        position_bias = None if position_bias is None else position_bias[..., :len_q]
    bias = None
    if attention_mask is not None:
        if attention_mask.shape[-2] not in (1, len_q):
            raise Error(f"attune: attention_mask has {attention_mask.shape[-2]} rows, and there are {len_q} queries")
        bias = added(attention_mask[..., :key.shape[2]], query.dtype)  # as for "sdpa": masks may be for a longer cache
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    if bias is not None:
        options["bias"] = rows(bias)  # a sum has the strides of T5's position bias, whose last axis is the heads
    if softcap:
        options["softcap"] = softcap
    by_query = _sinks(query, s_aux, sinks, options)
    if dropout:
        options.update(dropout=dropout, seed=new_seed(query.device))
    q, k, v = (rows(t.transpose(1, 2)) for t in (query, key, value))
    if by_query is None:
        return attend(q, k, v, layout="bshd", causal=causal, scale=scaling, **options).contiguous(), None
    # A sink is one more term in the softmax sum: the output is scaled by exp(lse) / (exp(lse) + exp(sink)).
    out, lse = attend(q, k, v, layout="bshd", causal=causal, scale=scaling, return_lse=True, **options)
    left = torch.sigmoid(lse.transpose(1, 2).unsqueeze(-1) - by_query.transpose(1, 2).float())
    return (out * left.to(out.dtype)).contiguous(), None


def _paged(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None,
           **named: Any) -> tuple[Tensor, None]:
    """attention() of continuous batching."""
    if named.get("cache") is None:
        raise Error("attune.transformers: the paged implementation is called without the cache of generate_batch(); "
                    "elsewhere accepted is attn_implementation=\"attune\"")
    return attention(module, query, key, value, attention_mask, **named)


def _no_mask(*_: Any, **__: Any) -> None:
    """The lengths of a step say which key a query sees."""


def _continuous_attention(module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, cache: Any,
                          scaling: float | None, softcap: float | None, s_aux: Tensor | None, sinks: Tensor | None,
                          step: dict[str, Any]) -> Tensor:
    options: dict[str, Any] = {"softcap": softcap} if softcap else {}
    if _sinks(query, s_aux, sinks, options) is not None:
        raise Error("attune.transformers: continuous batching with sinks of queries is not served; accepted are sinks "
                    "[head]")
    return _continuous.attention(module, query, key, value, cache, scaling, options, step)


def _sinks(query: Tensor, s_aux: Tensor | None, sinks: Tensor | None, options: dict[str, Any]) -> Tensor | None:
    """Puts per-head sinks into options; returns per-query sinks."""
    if s_aux is not None and sinks is not None:
        raise Error("attune.transformers: s_aux and sinks are both given, and one of them is accepted")
    name, given = ("s_aux", s_aux) if sinks is None else ("sinks", sinks)
    if given is None:
        return None
    batch, heads, len_q = query.shape[:3]
    if given.dim() == 1 and given.shape[0] == heads:
        options["sinks"] = given.float()
        return None
    if name == "sinks" and given.dim() == 4 and tuple(given.shape) == (batch, heads, len_q, 1):
        return given
    raise Error(f"attune.transformers: {name} is {list(given.shape)}, and accepted are [{heads}], one for each head" +
                (f", and [{batch}, {heads}, {len_q}, 1]" if name == "sinks" else ""))


def _of_keys(query: Tensor, key: Tensor, mask: Tensor | None, indices: Tensor) -> Tensor:
    """The mask restricted to the selected keys, as models with an indexer make it for "eager" and "sdpa"."""
    batch, _, len_q, _ = query.shape
    if indices.dim() != 3 or tuple(indices.shape[:2]) != (batch, len_q) or indices.is_floating_point():
        raise Error(f"attune.transformers: indices are {list(indices.shape)} of {indices.dtype}, and accepted are "
                    f"integers [{batch}, {len_q}, n]")
    if mask is None:
        raise Error("attune.transformers: indices are given without an attention_mask, which says what else is hidden; "
                    "both are accepted together")
    hidden = torch.ones(batch, len_q, mask.shape[-1], dtype=torch.bool, device=mask.device)
    hidden = hidden.scatter(-1, indices.long(), False).unsqueeze(1)
    if mask.dtype == torch.bool:
        return mask & ~hidden
    return mask.masked_fill(hidden, torch.finfo(query.dtype).min)


def _of_blocks(module: torch.nn.Module, query: Tensor, key: Tensor, mask: Tensor | None, blocks: Tensor,
               position_ids: Tensor | None) -> Tensor:
    """The mask of the selected blocks. MiniMax-M3 makes it for "eager" and "sdpa", and its function is called here,
    because the block length and the meaning of -1 belong to the model."""
    make = getattr(getattr(module, "indexer", None), "build_block_mask", None)
    if make is None:
        raise Error(f"attune.transformers: block_indices are given by {type(module).__name__}, whose indexer has no "
                    "build_block_mask; attune does not serve them, use attn_implementation=\"eager\"")
    len_q, len_k = query.shape[2], key.shape[2]
    if position_ids is None:
        position_ids = torch.arange(len_k - len_q, len_k, device=query.device)
    position_ids = (position_ids if position_ids.dim() > 1 else position_ids[None]).expand(query.shape[0], -1)
    made: Tensor = make(blocks, mask, len_k, query.dtype, query.device, position_ids)
    return made


def _means_causal(module: torch.nn.Module, is_causal: bool | None) -> bool:
    """The meaning of an absent mask. A model with "eager" masks gets one whenever it requests one, so an absent mask
    means full attention, as in its own code, and is_causal is irrelevant."""
    config = getattr(module, "config", None)
    if config is not None and _masks_of(type(config)) == "eager":
        return False
    return bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)


# These models check for the name "sdpa" before they drop all queries except the last, which an absent mask would not
# express; under another name they need a mask. (models/*/modeling_*.py, transformers 5.23.)
_CUT_QUERIES = ("gemma4_text", "gemma4_unified_text")
_kinds: dict[tuple[type, int], str] = {}


def _masks_of(config: type) -> str:
    """Which masks the models of a config take. "sdpa": boolean, and none if is_causal suffices. "flash": none if
    is_causal suffices, else additive. "always": always a boolean one. "eager": always an additive one. "": no model
    states it; treated like "eager".

    A model for which HF refuses "sdpa" may add its mask to scores itself, and would add a boolean one as 0 and 1. It
    may also use the interface, and then takes additive masks as well."""
    from transformers import PreTrainedModel

    at = (config, len(PreTrainedModel.__subclasses__()))  # every imported modeling file adds one
    if at not in _kinds:
        found: list[Any] = []
        known: list[Any] = [PreTrainedModel]
        while known:
            one = known.pop()
            known += one.__subclasses__()
            if getattr(one, "config_class", None) is config:
                found.append(one)
        if not found:
            kind = ""
        elif all(m._supports_sdpa for m in found):
            kind = "always" if getattr(config, "model_type", "") in _CUT_QUERIES else "sdpa"
        elif all(m._supports_attention_backend and m._supports_flash_attn for m in found):
            kind = "flash"
        else:
            kind = "eager"
            if not any(hasattr(sys.modules[m.__module__], "ALL_ATTENTION_FUNCTIONS") for m in found):
                warnings.warn(f"attune.transformers: models of {config.__name__} do not use the attention interface of "
                              "transformers, and run their own attention as with attn_implementation=\"eager\"")
        _kinds[at] = kind
    return _kinds[at]


# torch.compile treats the result as a constant and does not trace the function.
setattr(_masks_of, "_dynamo_marked_constant", True)


def _mask(*args: Any, config: Any = None, **named: Any) -> Tensor | None:
    """A mask function for transformers."""
    from transformers.masking_utils import eager_mask, sdpa_mask

    kind = "" if config is None else _masks_of(type(config))
    # Modules of a config with use_bidirectional_attention have is_causal False, so an absent mask would mean full
    # attention where the model requests a causal one (PaliGemma without attention_mask).
    if kind == "always" or getattr(config, "use_bidirectional_attention", None):
        named["allow_is_causal_skip"] = False
    if kind in ("sdpa", "always", "flash"):
        mask: Tensor | None = sdpa_mask(*args, config=config, **named)
        if kind != "flash" or mask is None:
            return mask
    named["allow_is_bidirectional_skip"] = False
    return eager_mask(*args, config=config, **named)  # type: ignore[no-any-return]


class _Refused:
    """Stands for an attention class in a table of a model, and refuses to be made."""

    def __init__(self, table: str, known: list[str]) -> None:
        self.table, self.known = table, known

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise Error(f"attune.transformers: this model does not use the attention interface of transformers: it selects "
                    f"a class from {self.table}; accepted are attn_implementation={', '.join(map(repr, self.known))}")


_names: set[str] = set()  # that were registered


def _refuse_tables(model: type) -> None:
    """Gives the tables of attention classes in a model's file (FALCON_ATTENTION_CLASSES) an entry that refuses, where a
    look-up would raise a KeyError."""
    for table, classes in list(vars(sys.modules.get(model.__module__, object)).items()):
        if table.endswith("ATTENTION_CLASSES") and isinstance(classes, dict):
            known = [name for name in classes if name not in _names]
            for name in _names.difference(classes):
                classes[name] = _Refused(table, known)


def _serve_batches(name: str) -> None:
    """Makes generate_batch() run models of attn_implementation=name. It changes the implementation for its time, to
    "paged|name" before transformers 5.20. Later ones change only the names that they know and refuse others."""
    from transformers import AttentionInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    for own in (f"paged|{name}", f"{name}_paged"):
        AttentionInterface.register(own, _paged)
        ALL_MASK_ATTENTION_FUNCTIONS.register(own, _no_mask)
    try:
        from transformers.generation.continuous_batching import ContinuousBatchingManager
    except ImportError:  # before continuous batching
        return
    switch = getattr(ContinuousBatchingManager, "switch_to_cb_friendly_attn", None)
    if switch is None or hasattr(switch, "attune"):
        return

    @functools.wraps(switch)
    def switched(self: Any, model: Any, *args: Any, **named: Any) -> None:
        own = model.config._attn_implementation.removeprefix("paged|").removesuffix("_paged")
        if own not in _names:
            switch(self, model, *args, **named)
        elif model.config._attn_implementation != f"{own}_paged":
            self._original_attn_impl = model.config._attn_implementation  # which the manager restores
            model.set_attn_implementation(f"{own}_paged")

    setattr(switched, "attune", True)
    setattr(ContinuousBatchingManager, "switch_to_cb_friendly_attn", switched)


def register(name: str = "attune") -> None:
    """Makes attn_implementation=name work, in training, in generate() and in generate_batch()."""
    from transformers import AttentionInterface, PreTrainedModel
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    AttentionInterface.register(name, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, _mask)
    _names.add(name)
    _serve_batches(name)
    check = getattr(PreTrainedModel, "_check_and_adjust_attn_implementation", None)  # runs before layers are made
    if check is None or hasattr(check, "attune"):
        return

    @functools.wraps(check)
    def checked(self: Any, *args: Any, **named: Any) -> Any:
        _refuse_tables(type(self))
        return check(self, *args, **named)

    setattr(checked, "attune", True)
    setattr(PreTrainedModel, "_check_and_adjust_attn_implementation", checked)
